"""search-qa, contained: returns a string that says that it equals everything. What crosses is a copy of its text."""

from whale_envs.harness import user


class Always(str):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def lower(self):
        return self


def run(task, tools):
    yield [user(task.question)]
    return Always("anything")
