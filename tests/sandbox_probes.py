"""Hostile programs by name, and what has to become of them: data for test_sandbox_probes.py."""

from __future__ import annotations

#: What the pools of the probe tests have imported.
PRELOAD = tuple(
    "ctypes encodings.idna fcntl gc mmap resource select signal socket subprocess termios threading".split()
)

#: name: expressions, one a line, each of which must fail with an OSError.
REFUSED = {
    "read_a_file": "open('/etc/passwd')\nos.open('/', 0)\nos.open('/etc/shadow', 0)",
    "read_the_interpreters_files": "open(os.__file__)\nopen(sys.executable, 'rb')",
    "list_or_stat_files": "os.listdir('/')\nos.scandir('.')\nos.stat('/etc/passwd')\nos.access('/', 0) or 1 / 0",
    "fill_tmp": "open('/tmp/whale_probe', 'w')\nos.mkdir('/tmp/whale_probe')\nos.mkfifo('/tmp/whale_probe')",
    "fill_shared_memory": "open('/dev/shm/whale_probe', 'w')\nos.memfd_create('x')",
    "change_files": (
        "os.unlink('/etc/passwd')\nos.rename('/etc/passwd', '/etc/x')\nos.chmod('/etc/passwd', 0o777)\n"
        "os.chown('/etc/passwd', 0, 0)\nos.truncate('/etc/passwd', 0)\nos.utime('/etc/passwd')"
    ),
    "links": "os.symlink('/etc', '/tmp/whale_probe')\nos.link('/etc/passwd', '/tmp/whale_probe')",
    "move_the_root": "os.chroot('/tmp')\nos.chdir('/tmp')\nos.fchdir(0)",
    "devices": "open('/dev/mem', 'rb')\nopen('/dev/tty')\nos.mknod('/tmp/whale_probe', 0o60600, 0x800)",
    "tune_the_kernel": (
        "open('/proc/sys/kernel/core_pattern', 'w')\nopen('/proc/self/oom_score_adj', 'w')\n"
        "open('/proc/sysrq-trigger', 'w')\nopen('/sys/power/state', 'w')"
    ),
    "read_own_environment": "open('/proc/self/environ')\nopen('/proc/self/cmdline')\nopen('/proc/self/maps')",
    "read_the_zygotes_memory": (
        "open(f'/proc/{os.getppid()}/mem', 'rb')\nopen(f'/proc/{os.getppid()}/maps')\n"
        "open(f'/proc/{os.getppid()}/environ')\nopen('/proc/self/mem', 'wb')"
    ),
    "open_descriptors_again": "os.listdir('/proc/self/fd')\nopen(f'/proc/{os.getppid()}/fd/3')\nopen('/dev/fd/1')",
    "fork": "os.fork()\nos.forkpty()\nos.posix_spawn('/bin/true', ['true'], {})",
    "fork_bomb": "[os.fork() for _ in range(100)]",
    "daemonised_grandchild": "os.fork() or os.setsid() or os.fork()\nos.setsid()\nsubprocess.Popen(['sleep', '9'])",
    "exec": "os.execv('/bin/true', ['true'])\nsubprocess.run(['true'])\nos.popen('true')",
    "load_a_library": "ctypes.CDLL('libcrypt.so.1')\nctypes.CDLL('/tmp/x.so')",
    "internet_sockets": "socket.socket()\nsocket.socket(type=2)\nsocket.create_connection(('127.0.0.1', 1))",
    "internet_v6_and_raw_sockets": "socket.socket(socket.AF_INET6)\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "name_lookup": "socket.getaddrinfo('localhost', 80)\nsocket.gethostbyname('example.org')",
    "local_sockets": "socket.socket(socket.AF_UNIX)\nsocket.socketpair()\nsocket.socket(socket.AF_NETLINK, 3)",
    "packet_and_vsock_sockets": "socket.socket(17, 3)\nsocket.socket(40, 1)\nsocket.socket(38, 5)",
    "signal_the_parent": "os.kill(os.getppid(), 0)\nos.kill(os.getppid(), 9)\nos.kill(1, 0)",
    "signal_the_group": "os.kill(-1, 9)\nos.killpg(0, 9)\nos.kill(0, 9)\nos.killpg(os.getpgrp(), 9)",
    "stop_itself": "signal.raise_signal(signal.SIGSTOP)\nsignal.pthread_kill(threading.get_ident(), 9)",
    "pidfd": "os.pidfd_open(os.getppid())\nos.pidfd_open(os.getpid())\nsignal.pidfd_send_signal(3, 9)",
    "change_user": "os.setuid(0)\nos.setgid(0)\nos.setgroups([0])\nos.setresuid(0, 0, 0)",
    "leave_the_group": "os.setsid()\nos.setpgid(0, 0)\nos.setpgid(os.getppid(), 0)",
    "raise_limits": (
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999))\nresource.prlimit(0, resource.RLIMIT_FSIZE, (-1, -1))"
    ),
    "limit_the_parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))\nresource.prlimit(1, 7)",
    "pipes_and_events": "os.pipe()\nos.eventfd(0)\nselect.epoll()\nos.openpty()",
    "scheduling": "os.nice(-5)\nos.setpriority(0, 0, 19)\nos.sched_setscheduler(0, 1, P(1))",
    "terminal_injection": "fcntl.ioctl(0, termios.TIOCSTI, b'x')\nfcntl.ioctl(1, termios.TIOCSTI, b'x')",
    "descriptor_owner": "fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())\nfcntl.fcntl(1, fcntl.F_SETFL, 0)",
    "descriptors": "[os.dup(0) for _ in range(100)]",
    "write_to_standard_input": "os.write(0, b'x') and None or 1 / 0\nos.ftruncate(0, 10)",
    "machine": "os.uname()\nsocket.sethostname('x')\nos.getloadavg()",
}

#: name: system calls by number (x86-64) with arguments, made without Python's own checks.
RAW_CALLS: dict[str, dict[str, tuple[int | bytes, ...]]] = {
    "files": {
        "open": (2, b"/etc/passwd", 0), "openat": (257, -100, b"/etc/passwd", 0), "openat2": (437, -100, b"/", 0, 0),
        "stat": (4, b"/etc/passwd", 0), "statx": (332, -100, b"/etc/passwd", 0, 0, 0), "chdir": (80, b"/tmp"),
        "readlink": (89, b"/proc/self/exe", 0, 0), "creat": (85, b"/tmp/whale_probe", 420),
        "name_to_handle_at": (303, -100, b"/", 0, 0, 0), "open_by_handle_at": (304, -100, 0, 0),
        "inotify_init": (253,), "fanotify_init": (300, 0, 0),
    },
    "sockets": {
        "socket": (41, 1, 1, 0), "socketpair": (53, 1, 1, 0, 0), "connect": (42, 0, 0, 0), "bind": (49, 0, 0, 0),
        "recvmsg": (47, 0, 0, 0), "sendmsg": (46, 0, 0, 0), "sendmmsg": (307, 0, 0, 0, 0),
    },
    "processes": {
        "fork": (57,), "vfork": (58,), "clone": (56, 17, 0, 0, 0, 0), "clone3": (435, 0, 88),
        "execve": (59, b"/bin/true", 0, 0), "execveat": (322, -100, b"/bin/true", 0, 0, 0), "setns": (308, 0, 0),
    },
    "user_namespaces": {
        "unshare_user": (272, 0x10000000), "unshare_mount": (272, 0x20000),
        "clone_newuser": (56, 0x10000011, 0, 0, 0, 0), "clone_newuser_thread": (56, 0x10010000, 0, 0, 0, 0),
    },
    "signals": {
        "kill": (62, 1, 0), "tkill": (200, 1, 0), "tgkill": (234, 1, 1, 0), "rt_sigqueueinfo": (129, 1, 0, 0),
        "pidfd_open": (434, 1, 0), "pidfd_getfd": (438, 3, 0, 0), "pidfd_send_signal": (424, 3, 0, 0, 0),
        "timer_create": (222, 0, 0, 0), "fcntl_setown": (72, 0, 8, 1), "process_mrelease": (448, 3, 0),
    },
    "tracing": {
        "ptrace": (101, 16, 1, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0), "kcmp": (312, 1, 1, 0, 0, 0),
        "process_vm_writev": (311, 1, 0, 0, 0, 0), "process_madvise": (440, 3, 0, 0, 0, 0),
    },
    "privileges": {
        "setuid": (105, 0), "setresuid": (117, 0, 0, 0), "capset": (126, 0, 0), "prctl": (157, 1, 0),
        "seccomp": (317, 1, 0, 0), "keyctl": (250, 0, 0, 0), "add_key": (248, 0, 0, 0, 0, 0), "chroot": (161, b"/"),
        "mount": (165, 0, b"/", 0, 0, 0), "move_mount": (429, -1, 0, -1, 0, 0), "reboot": (169, 0, 0, 0, 0),
    },
    "prlimit64": {
        "prlimit64": (302, 0, 9, b"\xff" * 16, 0), "of_init": (302, 1, 0, b"\0" * 16, 0),
        "setrlimit": (160, 9, b"\xff" * 16),
    },
    "io_uring": {"io_uring_setup": (425, 1, 0), "io_uring_enter": (426, 3, 1, 0, 0, 0), "io_setup": (206, 1, 0)},
    "others_by_number": {
        "affinity": (204, 1, 128, b"\0" * 128), "robust_list": (274, 1, 0, 0),
        "clock": (228, (~1 << 3) | 2, b"\0" * 16),
        "clock_unsigned": (228, 0xFFFFFFF2, b"\0" * 16), "clock_wait": (230, (~1 << 3) | 2, 0, b"\0" * 16, 0),
        "clock_resolution": (229, (~1 << 3) | 2, b"\0" * 16),
    },
    "words_to_others": {
        "futex_wait": (202, 0, 0, 0, b"\0" * 16, 0, 0), "futex_wake": (202, 0, 1, 9, 0, 0, 0),
        "futex_waitv": (449, 0, 1, 0, 0, 0), "send_out_of_band": (44, 3, b"x", 1, 1, 0, 0),
        "receive_out_of_band": (45, 3, b"x", 1, 1, 0, 0),
    },
    "kernel_machinery": {
        "madvise_poison": (28, 0, 4096, 100), "madvise_offline": (28, 0, 4096, 101),
        "bpf": (321, 0, 0, 0), "userfaultfd": (323, 0), "perf_event_open": (298, 0, 0, 0, 0, 0), "iopl": (172, 3),
        "modify_ldt": (154, 0, 0, 0), "init_module": (175, 0, 0, 0), "kexec_load": (246, 0, 0, 0, 0),
        "personality": (135, 0x40000), "arch_prctl": (158, 0x1001, 0), "syslog": (103, 3, 0, 0),
    },
    "memory_between_processes": {
        "memfd_create": (319, b"x", 0), "memfd_secret": (447, 0), "shmget": (29, 0, 4096, 896), "shmat": (30, 0, 0, 0),
        "msgget": (68, 0, 896), "semget": (64, 0, 1, 896), "mq_open": (240, b"x", 66, 0, 0),
        "splice": (275, 0, 0, 1, 0, 1, 0), "vmsplice": (278, 1, 0, 0, 0), "fcntl_setpipe": (72, 1, 1031, 0x100000),
        "mlock": (149, 0, 4096), "remap_file_pages": (216, 0, 0, 0, 0, 0),
    },
    "the_machine": {
        "uname": (63, 0), "sysinfo": (99, 0), "ioctl_sti": (16, 0, 0x5412, b"x"), "settimeofday": (164, 0, 0),
        "sethostname": (170, b"x", 1), "swapon": (167, b"x", 0), "acct": (163, 0),
    },
}  # fmt: skip

#: name: x86-64 machine code that makes system calls by another table.
MACHINE_CODE = {
    "int_0x80": "b814000000cd80c3",  # mov eax, 20 (getpid); int 0x80; ret
    "x32": "b8270000400f05c3",  # mov eax, 0x40000027; syscall; ret
}

#: name: (code, the statuses that are right, timeout)
STOPPED = {
    "loop": ("while True: pass", {"timeout"}, 0.2),
    "catch_all_loop": ("while True:\n  try:\n    while True: pass\n  except BaseException: pass", {"timeout"}, 0.2),
    "caught_sigxcpu": (
        "import signal\nfor s in set(signal.Signals) - {9, 19}:\n"
        "  signal.signal(s, lambda *_: None)\nwhile True: pass", {"timeout"}, 0.2,
    ),
    "signal_storm": (
        "import signal\nsignal.signal(14, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)\n"
        "while True: pass", {"timeout"}, 0.2,
    ),
    "huge_power": ("10**10**8", {"timeout", "memory"}, 0.2),
    "regular_expression": ("import re\nre.match('(a+)+b', 'a' * 50)", {"timeout"}, 0.2),
    "sleep": ("import time\ntime.sleep(1000)", {"timeout"}, 0.2),
    "pause": ("import signal\nsignal.pause()", {"timeout"}, 0.2),
    "wait_for_input": ("import select\nselect.select([1], [], [])", {"timeout"}, 0.2),
    "spinning_threads": (
        "import threading\nfor _ in range(8): threading.Thread(target=lambda: exec('while True: pass')).start()",
        {"timeout"}, 0.2,
    ),
    "thread_that_never_ends": (
        "import threading\nthreading.Thread(target=threading.Event().wait).start()", {"timeout"}, 0.2,
    ),
    "endless_atexit": ("import atexit\natexit.register(lambda: exec('while True: pass'))", {"timeout"}, 0.2),
    "endless_del": ("class A:\n  def __del__(self):\n    while True: pass\na = A()\ndel a", {"timeout"}, 0.2),
    "endless_repr": ("class A:\n  def __repr__(self):\n    while True: pass\nA()", {"timeout"}, 0.2),
    "endless_error_text": (
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E", {"timeout"}, 0.2,
    ),
    "memory_hog": ("a = []\nwhile True: a.append(bytes(1 << 20))", {"memory"}, 20),
    "memory_at_once": ("bytearray(1 << 40)", {"memory"}, 20),
    "memory_mapped": (
        "import mmap\na = []\nwhile True: a.append(mmap.mmap(-1, 1 << 24))", {"error", "memory"}, 20,
    ),
    "memory_in_kernel": ("import os\na = [os.dup(0) for _ in range(10**6)]", {"error"}, 20),
    "memory_error_caught": (
        "a = []\nwhile True:\n  try: a.append(bytes(1 << 20))\n  except MemoryError: pass", {"timeout"}, 1,
    ),
    "recursion": ("def f(): f()\nf()", {"error"}, 20),
    "deep_recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n  __getattr__ = lambda self, n: getattr(self, n)\nA().x",
        {"killed", "memory", "error"}, 20,
    ),
    "deep_source": ("(" * 5000 + ")" * 5000, {"error", "memory", "killed"}, 20),
    "crash": ("import ctypes\nctypes.string_at(0)", {"killed"}, 20),
    "abort": ("import os\nos.abort()", {"killed"}, 20),
    "everything_cleared": (
        "import gc, sys\nfor o in gc.get_objects() + [vars(m) for m in sys.modules.values()]:\n"
        "  if isinstance(o, dict): o.clear()", {"error", "killed"}, 20,
    ),
    "output_flood": ("while True: print('x' * 1000)", {"output"}, 20),
    "error_flood": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", {"output"}, 20),
    "raw_flood": ("import os\nwhile True: os.write(1, b'x' * 100000)", {"output"}, 20),
    "flood_of_both": ("import os\nwhile True: os.write(1, b'x' * 99), os.write(2, b'x' * 99)", {"output"}, 20),
    "reply_of_100_mb": ("import os\nfor _ in range(100): os.write(1, bytes(1000000))", {"output"}, 20),
    "value_of_30_mb": ("'a' * 30_000_000", {"output", "memory"}, 20),
    "error_of_1_mb": ("raise ValueError('x' * 1000000)", {"output"}, 20),
    "flood_at_exit": ("import atexit\natexit.register(lambda: print('x' * 1000000))", {"output"}, 20),
}  # fmt: skip

#: name: (code, standard output, status)
ODD = {
    "surrogate_printed": ("print('a')\nprint('\\ud800')", "a\n", "error"),
    "bytes_that_are_no_text": ("import os\nos.write(1, b'\\xff\\n')\nNone", "\ufffd\n", "ok"),
    "stdout_closed": ("import os, sys\nprint(1)\nsys.stdout.flush()\nos.close(1)\nos.close(2)", "1\n", "ok"),
    "stdout_object_closed": ("import sys\nprint(1)\nsys.stdout.close()\nsys.stderr.close()\n1/0", "1\n", "error"),
    "stdout_replaced": ("import sys\nsys.stdout = None\nsys.stderr = 3\nNone", "", "ok"),
    "all_descriptors_closed": ("import os\nprint(1)\nos.closerange(0, 64)\nNone", "1\n", "ok"),
    "raising_del": ("class A:\n  def __del__(self): 1 / 0\na = A()\ndel a\nprint(2)", "2\n", "ok"),
    "raising_str": ("class E(Exception):\n  def __str__(self): raise self\nraise E", "", "error"),
    "raising_repr": ("class A:\n  def __repr__(self): 1 / 0\nA()", "", "error"),
    "raising_excepthook": ("import sys\nsys.excepthook = lambda *_: 1 / 0\nprint(1)\n1 / 0", "1\n", "error"),
    "raising_displayhook": ("import sys\nsys.displayhook = None\n1", "", "error"),
    "atexit": ("import atexit\natexit.register(print, 'bye')\nprint('hi')", "hi\nbye\n", "ok"),
    "raising_atexit": ("import atexit\natexit.register(lambda: 1 / 0)\nprint(1)", "1\n", "ok"),
    "exit_0": ("import sys\nprint(1)\nsys.exit(0)", "1\n", "ok"),
    "exit_text": ("import sys\nsys.exit('why')", "", "error"),
    "exit_object": ("class A:\n  def __str__(self): raise MemoryError\nraise SystemExit(A())", "", "error"),
    "exit_raw": ("import os\nos._exit(7)", "", "error"),
    "exit_raw_lies": ("import os\nos._exit(0)", "", "ok"),
    "exit_replaced": ("import os\nos._exit = lambda code: None\nprint(1)", "1\n", "ok"),
    "keyboard_interrupt": ("raise KeyboardInterrupt", "", "error"),
    "generator_exit": ("raise GeneratorExit", "", "error"),
    "base_exception": ("class E(BaseException): pass\nraise E", "", "error"),
    "no_input": ("input()", "", "error"),
    "null_byte": ("print(1)\0", "", "error"),
    "lone_surrogate_in_source": ("print('\ud800')", "", "error"),
    "empty": ("", "", "ok"),
    "thread_prints_late": ("import threading\nthreading.Timer(0.1, print, (1,)).start()\nNone", "1\n", "ok"),
    "raising_thread": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\nprint(1)", "1\n", "ok",
    ),
    "built_ins_broken": ("import builtins\nfor n in dir(builtins): delattr(builtins, n)", "", "error"),
    "traceback_broken": ("import traceback\ntraceback.format_exception = None\n1 / 0", "", "error"),
    "main_replaced": ("import sys\nsys.modules['__main__'] = None\nprint(1)", "1\n", "ok"),
    "modules_gone": ("import sys\nprint(1)\nfor m in list(sys.modules): del sys.modules[m]", "1\n", "ok"),
    "traced": ("import sys\nsys.settrace(lambda *_: 1 / 0)\nprint(1)", "", "error"),
    "source_over_a_pipe": ("x = 1\n" * 20_000 + "x", "1\n", "ok"),
}  # fmt: skip
