//! Signals: the alternate stack, handlers, and the signal mask.
//!
//! Handlers run on a stack of the thread's own (MG), because the interrupted goroutine's stack may
//! be the one that just overflowed (D4). A handler also finds its M by the base of that stack (D7).
//! So a `SigStack` keeps its addresses until it is uninstalled.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

use crate::sys::linux::frame::{Context, Info};
use crate::sys::linux::inject::{FAIL_SIGSTACK_AFTER, refuses};
use crate::sys::linux::mem::{map_pages, page_size, protect_none, round_up_page, unmap};
use crate::sys::linux::syscall::{Errno, check, syscall2, syscall4};

/// The bytes that handlers may use beyond the kernel's own frame.
const HANDLER_BYTES: usize = 64 << 10;

/// The calling thread's guarded alternate signal stack. Dropping it without `uninstall` leaves it
/// in place for the thread's life.
pub(crate) struct SigStack {
    /// Start of the mapping: one guard page, then the stack.
    start: *mut u8,
    /// Length of the mapping, guard included.
    len: usize,
    /// The alternate stack that the thread had before.
    previous: libc::stack_t,
}

impl SigStack {
    /// Gives the calling thread a guarded signal stack; CONTEXT: user.
    pub(crate) fn install() -> Result<SigStack, Errno> {
        if refuses(&FAIL_SIGSTACK_AFTER) {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: `getauxval` only reads the process's auxiliary vector.
        let kernel_bytes = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        let usable = kernel_bytes.max(libc::MINSIGSTKSZ) + HANDLER_BYTES;
        let usable = round_up_page(usable).ok_or(Errno(libc::ENOMEM))?;
        let len = page_size() + usable;
        let start = map_pages(len)?.as_ptr();
        // SAFETY: D4, the guard is the first page of the mapping made above, and no code uses it
        // yet.
        let installed = unsafe { protect_none(start, page_size()) }.and_then(|()| {
            alternate_stack(&libc::stack_t {
                ss_sp: start.wrapping_add(page_size()).cast(),
                ss_flags: 0,
                ss_size: usable,
            })
        });
        match installed {
            Ok(previous) => Ok(SigStack {
                start,
                len,
                previous,
            }),
            Err(errno) => {
                // SAFETY: the mapping was made above, and no other code has its address.
                unsafe { unmap(start, len) };
                Err(errno)
            }
        }
    }

    /// Gives the thread its previous alternate stack back and unmaps this one. Called on this very
    /// stack, it leaves both alone. CONTEXT: any. A `SigStack` is not Send, so the calling thread
    /// is the one that installed it.
    pub(crate) fn uninstall(self) {
        if alternate_stack(&self.previous).is_ok() {
            // SAFETY: the kernel no longer uses the stack for signals. The calling thread was its
            // only user and is not on it, else the kernel would have refused.
            unsafe { unmap(self.start, self.len) };
        }
    }

    /// The lowest usable address, just above the guard; CONTEXT: any.
    pub(crate) fn base(&self) -> usize {
        self.start as usize + page_size()
    }

    /// The first address past the stack; CONTEXT: any.
    pub(crate) fn top(&self) -> usize {
        self.start as usize + self.len
    }
}

/// Sets the calling thread's alternate stack and returns the previous one.
fn alternate_stack(stack: &libc::stack_t) -> Result<libc::stack_t, Errno> {
    let mut previous = MaybeUninit::<libc::stack_t>::uninit();
    let new = ptr::from_ref(stack) as usize;
    // SAFETY: the kernel reads one struct and writes another, and both are alive here. `SigStack`
    // keeps the stack itself mapped (MG).
    let answer = unsafe { syscall2(libc::SYS_sigaltstack, new, previous.as_mut_ptr() as usize) };
    check(answer)?;
    // SAFETY: the call succeeded, so the kernel has written the whole struct.
    Ok(unsafe { previous.assume_init() })
}

/// A handler that takes three arguments, which only the kernel makes.
pub(crate) type Handler = for<'a> extern "C" fn(c_int, Info<'a>, Context<'a>);

/// Installs `handler` for `sig` and returns the action that it replaces. All other signals are
/// blocked while the handler runs. CONTEXT: user, at process start.
///
/// # Safety
/// The handler is sound wherever the signal may arrive. It makes only bare system calls, does not
/// allocate, and uses no thread-local (D7, D9).
pub(crate) unsafe fn sigaction_install(
    sig: c_int,
    handler: Handler,
    flags: c_int,
) -> Result<Action, Errno> {
    // SAFETY: all zeros is a valid sigaction, and every field is set below.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = flags | libc::SA_SIGINFO;
    // SAFETY: the set is in this frame.
    unsafe { libc::sigfillset(&mut action.sa_mask) };
    // SAFETY: the handler is sound wherever the signal may arrive (see "Safety"). The kernel calls
    // it with the arguments that its type names, because of SA_SIGINFO.
    unsafe { exchange(sig, &action) }
}

/// An action that a signal of this process has or had, as the kernel reported it.
///
/// Its handler may be called, and the action restored, at any time: the program keeps the code that
/// its signal actions name, also below handlers that were installed later.
pub(crate) struct Action {
    signal: c_int,
    action: libc::sigaction,
}

impl Action {
    /// The installed action of `signal`; CONTEXT: user.
    pub(crate) fn read(signal: c_int) -> Result<Action, Errno> {
        // SAFETY: without a new action libc changes nothing.
        unsafe { exchange(signal, ptr::null()) }
    }

    /// The address of its handler, or `SIG_DFL` or `SIG_IGN`.
    pub(crate) fn handler(&self) -> usize {
        self.action.sa_sigaction
    }

    pub(crate) fn flags(&self) -> c_int {
        self.action.sa_flags
    }

    /// Calls the action's handler as the kernel would, for a handler that replaced it. Returns
    /// false if there is none (default or ignore), or if this is another signal. CONTEXT: signal.
    pub(crate) fn call(&self, signal: c_int, info: Info<'_>, context: &mut Context<'_>) -> bool {
        // SAFETY: the action was installed for this signal, as compared here.
        signal == self.signal && unsafe { call_handler(&self.action, signal, info, context) }
    }

    /// Installs the action again. Returns whether the kernel accepted it. CONTEXT: any.
    pub(crate) fn restore(&self) -> bool {
        // SAFETY: the process had this action for this signal, so it is sound to have it again. The
        // struct is borrowed, and libc's function is async-signal-safe.
        unsafe { libc::sigaction(self.signal, &self.action, ptr::null_mut()) == 0 }
    }
}

/// Sets the action of `sig`, unless `new` is null, and returns the previous one.
///
/// # Safety
/// `new` is null, or valid and sound to install for `sig`.
unsafe fn exchange(sig: c_int, new: *const libc::sigaction) -> Result<Action, Errno> {
    let mut previous = MaybeUninit::uninit();
    // SAFETY: `new` is null or sound to install (see "Safety"); libc writes the previous action to
    // the struct in this frame.
    if unsafe { libc::sigaction(sig, new, previous.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: the call succeeded, so libc has written the whole struct.
    let action = unsafe { previous.assume_init() };
    Ok(Action {
        signal: sig,
        action,
    })
}

/// Calls the function that `action` names, as the kernel would. Returns false if it names none
/// (default or ignore). CONTEXT: signal.
///
/// # Safety
/// `action` was installed for the signal `sig`.
pub(crate) unsafe fn call_handler(
    action: &libc::sigaction,
    sig: c_int,
    info: Info<'_>,
    context: &mut Context<'_>,
) -> bool {
    match action.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => return false,
        handler if action.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: D7, with SA_SIGINFO the address is a function of this type.
            unsafe { core::mem::transmute::<usize, Handler>(handler)(sig, info, context.again()) };
        }
        handler => {
            // SAFETY: D7, without SA_SIGINFO the address is a function of this type.
            unsafe { core::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(sig) };
        }
    }
    true
}

/// Bytes of the kernel's signal set, which holds signals 1 to 64.
const SET_BYTES: usize = 8;

/// An action as the kernel lays it out.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// The address of the handler installed for `sig` right now, or `SIG_DFL` or `SIG_IGN`. `None`:
/// there is no such signal. CONTEXT: any.
pub(crate) fn current_handler(sig: c_int) -> Option<usize> {
    let mut action = MaybeUninit::<KernelAction>::uninit();
    let at = action.as_mut_ptr() as usize;
    // SAFETY: D9, a bare call. Without a new action the kernel only writes the present one to the
    // struct in this frame.
    let answer = unsafe { syscall4(libc::SYS_rt_sigaction, sig as usize, 0, at, SET_BYTES) };
    check(answer).ok()?;
    // SAFETY: the call succeeded, so the kernel has written the whole struct.
    Some(unsafe { action.assume_init() }.handler)
}

/// Unblocks `sig` on the calling thread. A pending signal arrives at once. Returns whether the
/// signal was blocked before. CONTEXT: any.
pub(crate) fn unblock_signal(sig: c_int) -> bool {
    let set = set_of(sig);
    change_mask(libc::SIG_UNBLOCK, set) & set != 0
}

/// Blocks `sig` on the calling thread; CONTEXT: any.
pub(crate) fn block_signal(sig: c_int) {
    change_mask(libc::SIG_BLOCK, set_of(sig));
}

/// Blocks every signal on the calling thread, with three exceptions: the signals of `set` (bit `n -
/// 1` for signal `n`), the thread's own faults, and libc's internal signals, which every thread
/// must handle. CONTEXT: any.
pub(crate) fn hold_back_all_but(set: u64) {
    let own = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
        32,
        33,
    ];
    let open = own.into_iter().fold(set, |set, sig| set | set_of(sig));
    change_mask(libc::SIG_SETMASK, !open);
}

/// The kernel's set with one signal in it. It is empty if there is no such signal.
fn set_of(sig: c_int) -> u64 {
    match sig {
        1..=64 => 1 << (sig - 1),
        _ => 0,
    }
}

/// Changes the calling thread's mask and returns the previous one.
fn change_mask(how: c_int, set: u64) -> u64 {
    let mut previous = 0u64;
    let (new, old) = (
        ptr::from_ref(&set) as usize,
        ptr::from_mut(&mut previous) as usize,
    );
    // SAFETY: D9, a bare call. The kernel reads one set and writes another, both in this frame. It
    // refuses no valid `how`, and drops SIGKILL and SIGSTOP from the set.
    unsafe { syscall4(libc::SYS_rt_sigprocmask, how as usize, new, old, SET_BYTES) };
    previous
}

/// The error of the libc call that just failed on this thread.
fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno(error.raw_os_error().unwrap_or(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;
    use core::sync::atomic::Ordering::SeqCst;

    static STACK_SEEN: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn note_stack(_: c_int, _: Info<'_>, _: Context<'_>) {
        let local = 0u8;
        STACK_SEEN.store(ptr::from_ref(&local) as usize, SeqCst);
    }

    fn raise(sig: c_int) {
        // SAFETY: every test installs a handler for its signal first.
        assert_eq!(unsafe { libc::raise(sig) }, 0);
    }

    #[test]
    fn handlers_run_on_the_installed_stack_and_uninstall_restores() {
        std::thread::spawn(|| {
            let stack = SigStack::install().expect("stack");
            let (base, top) = (stack.base(), stack.top());
            assert!(base.is_multiple_of(page_size()) && top - base >= HANDLER_BYTES);
            let sig = libc::SIGRTMIN() + 3;
            // SAFETY: the handler only stores to an atomic (D7).
            let old = unsafe { sigaction_install(sig, note_stack, libc::SA_ONSTACK) };
            let old = old.expect("action");
            raise(sig);
            let seen = STACK_SEEN.load(SeqCst);
            assert!(base < seen && seen < top);
            stack.uninstall();
            raise(sig);
            let seen = STACK_SEEN.load(SeqCst);
            assert!(seen < base || top <= seen);
            assert!(old.restore());
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn refused_signals_are_errors() {
        // SAFETY: SIGKILL's action cannot be changed, so nothing is installed.
        let refused = unsafe { sigaction_install(libc::SIGKILL, note_stack, 0) };
        assert_eq!(refused.err(), Some(Errno(libc::EINVAL)));
    }

    #[test]
    fn the_present_handler_is_told() {
        let sig = libc::SIGRTMIN() + 4;
        assert_eq!(current_handler(sig), Some(libc::SIG_DFL));
        // SAFETY: the handler only stores to an atomic (D7).
        let old = unsafe { sigaction_install(sig, note_stack, 0) }.expect("action");
        assert_eq!(current_handler(sig), Some(note_stack as Handler as usize));
        assert!(old.restore());
        assert_eq!(current_handler(sig), Some(libc::SIG_DFL));
        // std ignores SIGPIPE in every program.
        assert_eq!(current_handler(libc::SIGPIPE), Some(libc::SIG_IGN));
        for none in [0, -1, 65, 1000] {
            assert_eq!(current_handler(none), None);
        }
    }

    #[test]
    fn a_blocked_signal_waits_until_it_is_unblocked() {
        static STRUCK: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn count(_: c_int, _: Info<'_>, _: Context<'_>) {
            STRUCK.fetch_add(1, SeqCst);
        }
        let sig = libc::SIGRTMIN() + 6;
        // SAFETY: the handler only counts in an atomic (D7).
        let old = unsafe { sigaction_install(sig, count, 0) }.expect("action");
        // The mask belongs to a thread, so the test uses a thread of its own.
        std::thread::spawn(move || {
            assert!(!unblock_signal(sig));
            block_signal(sig);
            raise(sig);
            assert_eq!(STRUCK.load(SeqCst), 0);
            assert!(unblock_signal(sig));
            assert_eq!(STRUCK.load(SeqCst), 1);
            assert!(!unblock_signal(sig));
            raise(sig);
            assert_eq!(STRUCK.load(SeqCst), 2);
            block_signal(libc::SIGUSR1);
            assert!(!unblock_signal(sig), "another signal is no matter");
            for none in [0, -1, 65, libc::SIGKILL] {
                block_signal(none);
                assert!(!unblock_signal(none));
            }
        })
        .join()
        .expect("no panic");
        assert!(old.restore());
    }
}
