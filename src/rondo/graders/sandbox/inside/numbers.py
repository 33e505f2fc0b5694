"""Numbers of the system calls that programs may make, for the two supported machine types."""

import platform

# A name, its number on x86-64 and on 64-bit ARM; "-": the call does not exist.
_TABLE = """
read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; open 2 -;
openat 257 56; close 3 57; lseek 8 62; stat 4 -; fstat 5 80; lstat 6 -; newfstatat 262 79;
statx 332 291; statfs 137 43; fstatfs 138 44; access 21 -; faccessat 269 48; faccessat2 439 439;
readlink 89 -; readlinkat 267 78; getdents 78 -; getdents64 217 61; getcwd 79 17; chdir 80 49;
fchdir 81 50; rename 82 -; renameat 264 38; renameat2 316 276; mkdir 83 -; mkdirat 258 34;
rmdir 84 -; unlink 87 -; unlinkat 263 35; link 86 -; linkat 265 37; symlink 88 -; symlinkat 266 36;
chmod 90 -; fchmod 91 52; fchmodat 268 53; utimensat 280 88; utime 132 -; utimes 235 -;
futimesat 261 -; truncate 76 45; ftruncate 77 46; fallocate 285 47; fsync 74 82; fdatasync 75 83;
umask 95 166; dup 32 23; dup2 33 -; dup3 292 24; pipe 22 -; pipe2 293 59;
poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create 213 -; epoll_create1 291 20;
epoll_ctl 233 21; epoll_wait 232 -; epoll_pwait 281 22; eventfd2 290 19; timerfd_create 283 85;
timerfd_settime 286 86; timerfd_gettime 287 87; sendfile 40 71; copy_file_range 326 285;
close_range 436 436; mmap 9 222; munmap 11 215; mprotect 10 226; mremap 25 216; madvise 28 233;
brk 12 214; msync 26 227; mincore 27 232; rt_sigprocmask 14 135; rt_sigreturn 15 139;
rt_sigpending 127 136; rt_sigtimedwait 128 137; rt_sigsuspend 130 133; sigaltstack 131 132;
kill 62 129; tgkill 234 131; tkill 200 130; pause 34 -; alarm 37 -; getitimer 36 102; setitimer 38 103;
nanosleep 35 101; clock_nanosleep 230 115; clock_gettime 228 113; clock_getres 229 114;
gettimeofday 96 169; time 201 -; times 100 153; getpid 39 172; getppid 110 173; gettid 186 178;
getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177; getresuid 118 148; getresgid 120 150;
getgroups 115 158; getpgrp 111 -; getpgid 121 155; setpgid 109 154; getsid 124 156;
uname 63 160; sysinfo 99 179; getrusage 98 165; getrlimit 97 163; prlimit64 302 261; getpriority 140 141;
getrandom 318 278; sched_yield 24 124; sched_getaffinity 204 123; sched_getparam 143 121;
sched_getscheduler 145 120; sched_get_priority_max 146 125; sched_get_priority_min 147 126;
getcpu 309 168; futex 202 98; set_robust_list 273 99; get_robust_list 274 100; rseq 334 293;
membarrier 324 283; set_tid_address 218 96; restart_syscall 219 128; fork 57 -; vfork 58 -;
wait4 61 260; waitid 247 95; exit 60 93; exit_group 231 94; sendto 44 206; recvfrom 45 207;
shutdown 48 210; getsockname 51 204; getpeername 52 205; getsockopt 55 209; fadvise64 221 223;
"""

CLONE, SOCKETPAIR, PRCTL, IOCTL, FCNTL, SIGACTION, PIVOT_ROOT, MOUNT_SETATTR = {
    "x86_64": (56, 53, 157, 16, 72, 13, 155, 442),
    "aarch64": (220, 199, 167, 29, 25, 134, 41, 442),
}.get(platform.machine(), (0,) * 8)

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}.get(platform.machine(), 0)
"""The kernel's id of the machine type, as passed to a filter; 0 if this file has no numbers for it."""


def allowed() -> list[int]:
    """Numbers for this machine, without the calls whose arguments are checked separately."""
    column = 2 if platform.machine() == "aarch64" else 1
    rows = [row.split() for row in _TABLE.replace("\n", " ").split(";") if row.strip()]
    return [int(row[column]) for row in rows if row[column] != "-"]
