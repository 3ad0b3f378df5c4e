//! Names of the system calls in which a thread may be blocked.
//!
//! A dump with "blocked in futex" is easier to read than one with a number. Calls that do not block
//! are left out: the dump prints their number.

/// Generates the function from the names of libc's constants.
macro_rules! names {
    ($($constant:ident)*) => {
        /// The name of a system call in which threads block; `None` for others; CONTEXT: any.
        pub(crate) fn syscall_name(nr: i64) -> Option<&'static str> {
            match nr {
                $(libc::$constant => stringify!($constant).strip_prefix("SYS_"),)*
                _ => None,
            }
        }
    };
}

names! {
    // Descriptors: reading, writing, waiting for either.
    SYS_read SYS_write SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_preadv SYS_pwritev
    SYS_preadv2 SYS_pwritev2 SYS_ioctl SYS_fcntl SYS_flock SYS_close SYS_close_range SYS_dup2
    SYS_dup3 SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_copy_file_range SYS_readahead
    SYS_poll SYS_ppoll SYS_select SYS_pselect6 SYS_epoll_ctl SYS_epoll_wait SYS_epoll_pwait
    SYS_epoll_pwait2 SYS_io_submit SYS_io_getevents SYS_io_destroy
    SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
    // Sockets.
    SYS_connect SYS_accept SYS_accept4 SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg
    SYS_sendmmsg SYS_recvmmsg SYS_shutdown SYS_bind SYS_setsockopt SYS_getsockopt
    // Files and directories: each of them may wait for a disk or a server.
    SYS_open SYS_openat SYS_openat2 SYS_creat SYS_stat SYS_fstat SYS_lstat SYS_newfstatat
    SYS_statx SYS_statfs SYS_fstatfs SYS_access SYS_faccessat SYS_faccessat2 SYS_readlink
    SYS_readlinkat SYS_getdents SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdir
    SYS_mkdirat SYS_rmdir SYS_mknod SYS_mknodat SYS_rename SYS_renameat SYS_renameat2 SYS_link
    SYS_linkat SYS_symlink SYS_symlinkat SYS_unlink SYS_unlinkat SYS_chmod SYS_fchmod
    SYS_fchmodat SYS_chown SYS_fchown SYS_lchown SYS_fchownat SYS_utimensat SYS_truncate
    SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_lseek SYS_fsync SYS_fdatasync
    SYS_sync_file_range SYS_sync SYS_syncfs SYS_mount SYS_umount2 SYS_getxattr SYS_setxattr
    // Time, other threads, other processes.
    SYS_nanosleep SYS_clock_nanosleep SYS_restart_syscall SYS_futex SYS_futex_waitv
    SYS_sched_yield SYS_pause SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_wait4 SYS_waitid
    SYS_clone SYS_clone3 SYS_fork SYS_vfork SYS_execve SYS_execveat SYS_exit SYS_exit_group
    SYS_ptrace SYS_membarrier SYS_semop SYS_semtimedop SYS_msgsnd SYS_msgrcv SYS_mq_timedsend
    SYS_mq_timedreceive SYS_process_vm_readv SYS_process_vm_writev
    // Memory: the lock of the address space, and pages that the kernel must find.
    SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_process_madvise SYS_brk SYS_msync
    SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_mincore SYS_mbind
    SYS_move_pages SYS_userfaultfd SYS_getrandom
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_this_machines_numbers() {
        let known = [
            (0, "read"),
            (1, "write"),
            (7, "poll"),
            (35, "nanosleep"),
            (61, "wait4"),
            (202, "futex"),
            (219, "restart_syscall"),
            (230, "clock_nanosleep"),
            (232, "epoll_wait"),
            (257, "openat"),
            (426, "io_uring_enter"),
            (441, "epoll_pwait2"),
            (449, "futex_waitv"),
        ];
        for (nr, name) in known {
            assert_eq!(syscall_name(nr), Some(name));
        }
    }

    #[test]
    fn the_rest_has_no_name() {
        for nr in [
            -1,
            i64::MIN,
            i64::MAX,
            libc::SYS_getpid,
            9999,
            202 + (1 << 32),
        ] {
            assert_eq!(syscall_name(nr), None, "{nr}");
        }
    }

    #[test]
    fn every_name_is_plain_and_its_own() {
        let mut all: Vec<_> = (0..1000).filter_map(syscall_name).collect();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(all.iter().all(|name| name.bytes().all(plain)));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(count > 150, "{count}");
    }
}
