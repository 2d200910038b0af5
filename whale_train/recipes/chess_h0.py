"""Chess h0, after the paper's: FEN, board, all legal moves; nine turns, one retry of a bad format, one of an illegal
move, thinking on."""

from whale_envs.harness import Ask, system, tag, user

SYSTEM = "You play chess. Find the winning move."
TURNS = 9
FORMAT_RETRIES = 1
ILLEGAL_RETRIES = 1
FORMAT = "Give your move in <move>...</move>."
ILLEGAL = "That is not a legal move."
THINKING = {"enable_thinking": True}


def show(board):
    moves = "\n".join(f"{uci} {san}" for uci, san in board.legal)
    return f"{board.fen}\n{board.board}\nLegal moves:\n{moves}\n{FORMAT}"


def read(text):
    said = text.rpartition("</think>")[2]
    return tag(said, "move") if said.count("<move>") == 1 else None


def run(task, tools):
    board = tools.board()
    messages = [system(SYSTEM), user(show(board))]
    unread = illegal = 0
    for _ in range(TURNS):
        reply = yield Ask(messages, template_kwargs=THINKING)
        messages.append(reply.message)
        move = read(reply.text)
        if not move:
            unread += 1
            if unread > FORMAT_RETRIES:
                return None
            messages.append(user(FORMAT))
            continue
        try:
            board = tools.move(move)
        except ValueError:
            illegal += 1
            if illegal > ILLEGAL_RETRIES:
                return None
            messages.append(user(f"{ILLEGAL} {FORMAT}"))
            continue
        if board.over:
            return move
        messages.append(user(show(board)))
    return None
