"""Programs that try to get out, to get hold of something, or to hurt the machine. What succeeds prints BREACH.

`{secret}` is a file of ours, `{port}` a server on this machine, `{victim}` a process of ours and `{name}` a file name
that nobody else uses.
"""

PRELUDE = """
import ctypes, os, platform, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"

def attempt(what, action):
    try:
        found = action()
    except BaseException as error:
        return None
    if found is not None and found is not False:
        print("BREACH", what, repr(found)[:200], flush=True)

def call(what, x86, arm, *args):
    attempt(what, lambda: libc.syscall(ctypes.c_long(x86 if X86 else arm), *args) >= 0)
"""

PROGRAMS = {
    # too much of everything
    "fork bomb": "while True: os.fork()",
    "fork bomb that goes on where it fails": """
end = time.time() + 0.5
while time.time() < end:
    try: os.fork()
    except OSError: pass
""",
    "daemons": """
for _ in range(5):
    if os.fork() == 0:
        os.setpgid(0, 0)
        if os.fork() == 0:
            for handle in range(3): os.close(handle)
            time.sleep(1000)
        os._exit(0)
""",
    "threads": """
import threading
for _ in range(10000): threading.Thread(target=time.sleep, args=(1000,)).start()
""",
    "memory at once": "x = bytearray(8 << 30); print('BREACH')",
    "memory bit by bit": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "memory of many processes": """
for _ in range(7):
    if os.fork() == 0: break
x = bytearray(b'x') * (90 << 20)
time.sleep(1000)
""",
    "memory that is shared": """
import mmap
kept = []
while True: kept.append(mmap.mmap(-1, 32 << 20)); kept[-1].write(b'x' * (32 << 20))
""",
    "memory in a file of the kernel's": "attempt('memfd', lambda: os.memfd_create('x'))",
    "memory in pipes": """
import fcntl
for _ in range(10000):
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    os.write(writes, bytes(1 << 20))
""",
    "locks and leases on what others read": """
import fcntl
handle = os.open(os.__file__, os.O_RDONLY)
attempt('flock', lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB) is None)
attempt('lease', lambda: fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0)
attempt('notify', lambda: fcntl.fcntl(os.open('/box', os.O_RDONLY), fcntl.F_NOTIFY, 2) == 0)
attempt('larger pipe', lambda: fcntl.fcntl(os.pipe()[0], 1031, 1 << 20) > 0)
""",
    "memory in sockets": """
while True:
    a, b = socket.socketpair()
    a.setblocking(False)
    a.send(bytes(1 << 20))
""",
    "a full disk": "f = open('{name}', 'wb')\nwhile True: f.write(bytes(1 << 20))",
    "a full disk of many files": "for i in range(10**6): open(f'{name}{{i}}', 'wb').write(bytes(1 << 20))",
    "names without end": """
open('{name}', 'w').close()
count = 0
for make in (lambda name: os.link('{name}', name), lambda name: os.symlink('x' * 255, name), os.mkdir):
    try:
        while count < 10000:
            make(f'{{count:0200d}}')
            count += 1
    except OSError: pass
attempt('names', lambda: count > 100)
for number in range(200000):
    try: os.stat(f'/box/{{number:0200d}}')
    except OSError: pass
""",
    "a huge file with a hole": "attempt('hole', lambda: open('{name}', 'wb').truncate(1 << 40) > 1 << 30)",
    "endless output": "while True: print('x' * 1000)",
    "endless errors": "while True: sys.stderr.write('x' * 1000)",
    "endless computing": "while True: pass",
    "endless computing without the signal": "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "endless sleep": "time.sleep(1000)",
    "sleep without signals": """
for number in set(signal.Signals) - {{signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}}:
    signal.signal(number, signal.SIG_IGN)
while True: time.sleep(1000)
""",
    "a process that stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "an end that does not end": "import atexit; atexit.register(time.sleep, 1000)",
    "a thread that does not end": "import threading; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "limits lifted": """
import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    attempt('limit', lambda: resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2) is None)
""",
    "priority": """
attempt('nice', lambda: os.nice(-10) < 0)
attempt('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)) is None)
attempt('affinity', lambda: os.sched_setaffinity(0, {{0}}) is None)
attempt('locked memory', lambda: libc.mlockall(3) == 0)
""",
    "a share of the CPU for each process": """
attempt('session', lambda: os.setsid() > 0)
if os.fork() == 0:
    attempt('session', lambda: os.setsid() > 0)
    os._exit(0)
os.wait()
""",
    "CPU time that is not counted": """
attempt('ignored children', lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN) is not None)
while True:
    if os.fork() == 0:
        end = time.process_time() + 0.02
        while time.process_time() < end: pass
        os._exit(0)
    os.wait()
""",
    # network
    "a connection": "attempt('connect', lambda: socket.create_connection(('127.0.0.1', {port}), 1))",
    "a connection by raw calls": """
handle = libc.socket(2, 1, 0)
attempt('connect', lambda: handle >= 0)
""",
    "a page of the web": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}'); print('BREACH')",
    "a name looked up": "attempt('dns', lambda: socket.getaddrinfo('example.com', 80))",
    "a server": "attempt('listen', lambda: socket.create_server(('', 0)))",
    "sockets of other kinds": """
for family, kind in ((1, 1), (16, 3), (17, 3), (40, 1), (38, 5), (2, 3), (10, 1)):
    attempt(f'socket {{family}}', lambda: socket.socket(family, kind))
attempt('pair', lambda: libc.socketpair(2, 1, 0, (ctypes.c_int * 2)()) == 0)
""",
    # files
    "a secret by its path": "attempt('secret', lambda: open('{secret}').read())",
    "a secret by links": """
os.symlink('{secret}', 'link')
attempt('symlink', lambda: open('link').read())
attempt('hard link', lambda: os.link('{secret}', 'hard') is None)
attempt('above', lambda: open('../' * 20 + '{secret}').read())
os.symlink('/proc/1/root', 'root')
attempt('root', lambda: os.listdir('root'))
""",
    "files of the machine": """
for path in ('/etc/passwd', '/etc/shadow', '/home', '/var', '/sys', '/proc', '/work', '/bin/sh', '/usr/bin', '/opt'):
    attempt(path, lambda: os.stat(path))
attempt('home', lambda: os.listdir(os.path.expanduser('~/.ssh')))
""",
    "everything that is seen": """
known = ('/box', '/dev', '/tmp', os.path.dirname(os.__file__), '/usr/share/zoneinfo')
for folder, folders, files in os.walk('/'):
    inside = folder.startswith(known) or any(each.startswith(folder.rstrip('/') + '/') for each in known)
    attempt(folder, lambda: not inside)
    attempt('packages', lambda: folder.endswith('-packages') and bool(folders or files))
""",
    "the environment": """
attempt('environ', lambda: [value for value in os.environ.values() if 'secret' in value] or None)
for process in range(1, 50): attempt('proc', lambda: open(f'/proc/{{process}}/environ').read())
""",
    "files by handles": """
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('kind', ctypes.c_int), ('data', ctypes.c_ubyte * 128)]
call('name to handle', 303, 264, -100, b'/box', ctypes.byref(Handle(128)), ctypes.byref(ctypes.c_int()), 0)
call('open by handle', 304, 265, 0, ctypes.byref(Handle(8, 1)), 0)
""",
    "writing where nobody should": """
for folder in ('/', '/dev', '/usr', os.path.dirname(os.__file__), '/usr/share/zoneinfo'):
    attempt(folder, lambda: open(f'{{folder}}/{name}', 'w'))
    attempt(folder, lambda: os.mkdir(f'{{folder}}/{name}') is None)
attempt('library', lambda: open(os.__file__, 'a'))
attempt('library', lambda: os.chmod(os.__file__, 0o777) is None)
attempt('library', lambda: os.unlink(os.__file__) is None)
open('/tmp/{name}', 'w').write('in my own box')
""",
    "devices": """
attempt('disk', lambda: os.mknod('disk', 0o60600, os.makedev(8, 0)) is None)
attempt('memory', lambda: os.mknod('mem', 0o20600, os.makedev(1, 1)) is None)
attempt('terminal', lambda: open('/dev/tty', 'w'))
attempt('kernel log', lambda: open('/dev/kmsg').read())
for handle in range(3): attempt('typed', lambda: libc.ioctl(handle, 0x5412, b'x') == 0)
""",
    "a program of its own": """
open('run', 'w').write('#!/bin/sh\\n')
os.chmod('run', 0o4777)
attempt('own', lambda: os.execv('run', ['run']))
""",
    "programs of others": """
import subprocess
attempt('shell', lambda: os.system('true') == 0)
for path in (sys.executable, '/bin/sh', '/lib64/ld-linux-x86-64.so.2', '/proc/self/exe'):
    attempt(path, lambda: subprocess.run([path, '--version']))
    attempt(path, lambda: os.execv(path, [path]))
call('execveat', 322, 281, -100, b'/bin/sh', None, None, 0)
""",
    "machine code from a file": """
import mmap
handle = os.open('code', os.O_RDWR | os.O_CREAT); os.write(handle, bytes(4096))
attempt('executable file', lambda: mmap.mmap(handle, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC))
""",
    # other processes
    "signals to everybody": """
for process in (os.getppid(), -1, 0, {victim}, *range(3, 200)):
    if process in (0, -1): continue
    attempt(f'signal to {{process}}', lambda: process != 1 and os.kill(process, signal.SIGKILL) is None)
for number in range(1, 65): attempt('', lambda: os.kill(1, number))
attempt('group', lambda: os.killpg({victim}, 9) is None)
os.kill(-1, signal.SIGKILL)
""",
    "debugging": """
call('ptrace', 101, 117, 16, 1, 0, 0)
call('ptrace', 101, 117, 0, 0, 0, 0)
""",
    "memory of others": """
buffer = ctypes.create_string_buffer(64)
vector = struct.pack('PN', ctypes.addressof(buffer), 64)
for process in (1, os.getpid(), {victim}):
    call('process_vm_readv', 310, 270, process, vector, 1, vector, 1, 0)
    call('process_vm_writev', 311, 271, process, vector, 1, vector, 1, 0)
""",
    "handles of others": """
call('pidfd_open', 434, 434, 1, 0)
call('pidfd_getfd', 438, 438, 0, 0, 0)
call('kcmp', 312, 272, 1, 1, 0, 0, 0)
""",
    "handles that were left open": """
import stat
for handle in range(4, 1024):
    attempt(f'handle {{handle}}', lambda: os.fstat(handle))
for handle in range(3):
    attempt('folder', lambda: stat.S_ISDIR(os.fstat(handle).st_mode))
    attempt('socket', lambda: stat.S_ISSOCK(os.fstat(handle).st_mode))
""",
    "its own input changed": """
attempt('write', lambda: os.write(0, b'x'))
attempt('truncate', lambda: os.ftruncate(0, 10) is None)
""",
    # the walls themselves
    "new namespaces": """
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    attempt('unshare', lambda: libc.unshare(flag) == 0)
    call('clone', 56, 220, flag | 17, 0, 0, 0, 0)
call('clone3', 435, 435, struct.pack('11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)
call('setns', 308, 268, 0, 0)
""",
    "mounts": """
attempt('tmpfs', lambda: libc.mount(b'tmpfs', b'/box', b'tmpfs', 0, None) == 0)
attempt('proc', lambda: libc.mount(b'proc', b'/box', b'proc', 0, None) == 0)
attempt('bind', lambda: libc.mount(b'/', b'/box', None, 4096, None) == 0)
attempt('writable', lambda: libc.mount(b'', b'/', None, 32, None) == 0)
attempt('umount', lambda: libc.umount2(b'/box', 2) == 0)
call('open_tree', 428, 428, -100, b'/', 1)
call('fsopen', 430, 430, b'proc', 0)
call('mount_setattr', 442, 442, -100, b'/', 0, bytes(32), 32)
""",
    "another root": """
os.mkdir('jail')
attempt('chroot', lambda: os.chroot('jail') is None)
call('pivot_root', 155, 41, b'/box', b'/box/jail')
for _ in range(50): os.chdir('..')
attempt('above', lambda: os.path.exists('etc'))
""",
    "another user": """
attempt('setuid', lambda: os.setuid(0) is None)
attempt('setresuid', lambda: os.setresuid(0, 0, 0) is None)
attempt('setgroups', lambda: os.setgroups([0]) is None)
attempt('root', lambda: 0 in os.getresuid())
attempt('capset', lambda: libc.capset(struct.pack('Ii', 0x20080522, 0), b'\\xff' * 24) == 0)
attempt('securebits', lambda: libc.prctl(28, 0, 0, 0, 0) == 0)
attempt('dumpable', lambda: libc.prctl(4, 1, 0, 0, 0) == 0)
""",
    "keys of the kernel's": """
call('keyctl', 250, 219, 0, -3, 1)
call('add_key', 248, 217, b'user', b'x', b'x', 1, -3)
call('request_key', 249, 218, b'user', b'x', None, -3)
""",
    "io_uring": """
call('io_uring_setup', 425, 425, 8, bytes(120))
call('io_uring_enter', 426, 426, 0, 1, 0, 0, 0, 0)
call('io_setup', 206, 0, 1, ctypes.byref(ctypes.c_ulong()))
""",
    "parts of the kernel that few need": """
call('bpf', 321, 280, 0, bytes(128), 128)
call('perf_event_open', 298, 241, bytes(128), 0, -1, -1, 0)
call('userfaultfd', 323, 282, 1)
call('seccomp', 317, 277, 0, 0, None)
call('personality', 135, 92, 0x0400000)
call('vmsplice', 278, 75, 1, bytes(16), 0, 0)
call('fanotify_init', 300, 262, 0, 0)
call('inotify_init1', 294, 26, 0)
call('landlock', 444, 444, None, 0, 1)
call('memfd_secret', 447, 447, 0)
call('syslog', 103, 116, 3, bytes(64), 64)
""",
    "the machine's own settings": """
call('reboot', 169, 142, 0xfee1dead, 672274793, 0x89abcdef, None)
call('sethostname', 170, 161, b'breach', 6)
call('settimeofday', 164, 170, bytes(16), None)
call('adjtimex', 159, 171, bytes(256))
call('swapon', 167, 224, b'/box/x', 0)
call('init_module', 175, 105, b'', 0, b'')
call('kexec_load', 246, 104, 0, 0, None, 0)
call('quotactl', 179, 60, 0, None, 0, None)
""",
    "memory shared by number": """
call('shmget', 29, 194, 0, 4096, 0o1600)
call('msgget', 68, 186, 0, 0o1600)
call('semget', 64, 190, 0, 1, 0o1600)
call('mq_open', 240, 180, b'x', 0o102, 0o600, None)
""",
    "calls of another kind": """
attempt('x32', lambda: libc.syscall(ctypes.c_long(0x40000000 + 41), 2, 1, 0) >= 0)
attempt('none', lambda: libc.syscall(ctypes.c_long(10**6), 0) >= 0)
""",
    # whoever watches and whoever comes next
    "poisoned modules": """
import builtins, json
builtins.print = builtins.exec = builtins.compile = None
sys.modules['json'] = sys.modules['os'] = None
sys.path.insert(0, '/box')
open('/box/random.py', 'w').write('print("BREACH")')
sys.settrace(lambda *values: None)
""",
    "a forged end": """
for handle in range(3, 1024):
    try: os.write(handle, b'{{"ended": 0, "why": "exit", "code": 0, "cpu": 0, "text": ""}}')
    except OSError: pass
os._exit(1)
""",
    "a crash": "ctypes.string_at(0)",
    "a crash of Python": "sys.setrecursionlimit(10**9)\nf = lambda: f()\nf()",
    "an end of all its processes": "os.kill(1, 9); os.kill(0, 9)",
}
