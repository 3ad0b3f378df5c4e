//! The operating system as the scheduler needs it, and nothing more.
//!
//! It keeps the platform in one folder: the rest of the crate calls `crate::sys::futex_wait(..)`
//! and never names a platform. A platform supplies these items:
//!
//! | file    | items |
//! |---------|-------|
//! | syscall | `Errno`, `check`, and the raw system call that the others use |
//! | futex   | `futex_wait`, `futex_wait_ptr`, `futex_wake_ptr`, `Wait` |
//! | clock   | `monotonic_ns`, `deadline_after`, `has_passed`, `deadline_of`, `instant_of` |
//! | mem     | `map_reserve`, `map_pages`, `map_pages_aligned`, `unmap`, `protect_none` |
//! |         | `dont_need`, `guard_install`, `guard_install_batch`, `page_size`, `round_up_page` |
//! | descriptor | `duplicate`, `pipe`, `try_epoll`, `pidfd_open`, `PIPE_BUF` |
//! |         | `read_fd`, `readv_fd`, `write_fd`, `writev_fd` |
//! | net     | `tcp_socket`, `tcp_bind`, `connect_begin`, `unix_socket`, `unix_connect` |
//! |         | `is_writable`, `is_readable`, `has_error`, `is_plain_listener`, `accept` |
//! |         | `listen_longest`, `linger`, `set_linger`, `recv`, `send`, `IOV_MAX`, `RW_MAX` |
//! |         | `is_nonblocking`, `set_nonblocking`, `socket_timeout`, `set_socket_timeout` |
//! |         | `SocketTimeout` |
//! | race    | `RaceSet` |
//! | pagevec | `PageVec` |
//! | thread  | `thread_spawn`, `set_thread_name`, `gettid`, `getpid` |
//! |         | `sched_yield`, `sleep_ns`, `exit_process`, `stack_bounds` |
//! | barrier | `membarrier_register`, `membarrier` |
//! | cpu_timer | `CpuTimer`, `pending_signals_max` |
//! | task    | `thread_cpu_ns`, `voluntary_switches`, `blocks_signal`, `signal_thread`, `TaskFile` |
//! |         | `Doing`, `set_timer_slack_ns`, `set_slice_ns` |
//! | signal  | `SigStack`, `Handler`, `sigaction_install`, `Action`, `call_handler` |
//! |         | `current_handler`, `unblock_signal`, `block_signal`, `hold_back_all_but` |
//! | frame   | `Info`, `Context` |
//! | sysname | `syscall_name` |
//! | cpus    | `default_procs` |
//! | proc    | `for_each_task`, `task_state` |
//! | io      | `write_stderr`, `eprint_raw`, `FixedBuf` |
//! | env     | `env_usize`, `DebugEnv` |
//! | epoll   | `Epoll`, `Event`, `event`, `BELL` |
//! | interrupted | `Interrupted`, which `Context` gives |
//! | inject  | `FAIL_MAP_AFTER`, `FAIL_THREAD_AFTER`, `FAIL_EPOLL_AFTER` |
//! |         | `FAIL_SIGSTACK_AFTER`, `REFUSE_OWN_TLS`, `REFUSE_MEMBARRIER`, `REFUSE_PROC` |
//! |         | `UNWINDER_ASKS`, `REFUSE_CPU_TIMERS`, `INTERRUPT_CLOCK` |
//!
//! Three rules hold for every platform (D9):
//! - Items whose doc has `CONTEXT: any` may run on g0 and in signal handlers. They make bare system
//!   calls, touch no thread-local (so no `errno`), do not allocate and do not panic.
//! - Items whose doc has `CONTEXT: user` may allocate and use libc. They run at start, on the
//!   creator thread, or while a thread sets itself up.
//! - Errors are values (`Errno`, in net `io::Error`), never `errno`.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("gosched supports Linux on x86_64 only: no other target has a `sys` layer yet.");

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux;
pub(crate) mod objects;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) use linux::*;
