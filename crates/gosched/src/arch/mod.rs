//! Everything that differs from one architecture to the next, behind one surface.
//!
//! The rest of the library names no register and contains no instruction: another architecture is
//! one more file here. `scripts/check-floors` fails on a register's name outside this folder.
//!
//! Two registers have a name of their own throughout the library:
//! - The **thread register** holds the **thread pointer** (`tp`): the address of the thread block
//!   that the running code uses for its thread-locals. libc sets it once for each thread; the
//!   runtime changes it with each goroutine (D6). On x86-64 it is the FS base.
//! - The **runtime's register** is free for programs by the platform's ABI. Each M keeps its own
//!   address there (D5). On x86-64 it is the GS base.
//!
//! | group | what an architecture supplies |
//! |---|---|
//! | the switch, with the thread pointer | `enter`, `leave` |
//! | a goroutine's first frame | `prepare`, `Entry`; `is_first_frame`, `prepend_arrival` (asan) |
//! | a call on another stack | `call_on`, `stack_pointer` |
//! | the thread register | `thread_pointer`, `set_thread_pointer`, |
//! | | `call_with_thread_pointer`, `can_set_thread_pointer` |
//! | words of the present block | `load_byte_at`, `load_word_at`, `store_word_at`, `swap_word_at` |
//! | the runtime's register | `has_runtime_register`, `runtime_register`, |
//! | | `set_runtime_register`, `load_by_runtime_register` |
//! | the interrupted context | `Registers`: `pc`, `sp`, `argument`, `is_call_returning` |
//! | a load from a bad address | `load_or_fault`, `after_faulted_load`, `Registers::continue_at` |
//! | putting back a system call | `Registers`: `call_number`, `set_argument`, `repeat_call` |
//! | a bare system call | `syscall0` … `syscall6` |
//! | fixed words of a libc block | `block` |
//! | functions under libc's names | `export_weak!` |
//! | the CPU | `prefetch`, `has_wide_compare`, `compare_masked` |
//! | | `RMW_IS_FULL_BARRIER`, `RED_ZONE` |
//! | tests only | `numbered`: system calls whose numbers are loaded in different ways |

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
