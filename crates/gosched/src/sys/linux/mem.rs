//! Pages from the kernel: mapping, guarding, returning.
//!
//! It replaces malloc, whose lock a parked goroutine may hold (D9).
//!
//! *Reserved* pages have addresses but cost memory only once touched. A *guard* faults on any
//! access. A guard marker (Linux 6.13) is an entry of the page table and needs no mapping of its
//! own. So a million of them fit in one mapping. Page protection splits mappings, and the kernel
//! limits their number (D4).
//!
//! Lengths are whole pages unless a function's doc has another rule.

use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::sys::linux::inject::{FAIL_MAP_AFTER, refuses};
use crate::sys::linux::syscall::{Errno, check, syscall2, syscall3, syscall4, syscall5, syscall6};

/// The advice that installs guard markers; newer than the C library's headers.
const MADV_GUARD_INSTALL: usize = 102;

/// A descriptor of the calling process that need not be opened (Linux 6.14).
const PIDFD_SELF: usize = -10_000_isize as usize;

/// How many ranges one call passes to the kernel: 1 KiB of this stack.
const BATCH: usize = 64;

/// False once the kernel has refused to advise its own caller; a hint only.
static BATCHES_WORK: AtomicBool = AtomicBool::new(true);

/// Bytes in a page; CONTEXT: any.
pub(crate) const fn page_size() -> usize {
    4096
}

/// `len` rounded up to whole pages; `None` beyond the end of the address space; CONTEXT: any.
pub(crate) const fn round_up_page(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(page_size())
}

/// Reserves address space for stacks: readable, writable, not counted as committed, never backed by
/// huge pages; CONTEXT: any.
pub(crate) fn map_reserve(len: usize) -> Result<NonNull<u8>, Errno> {
    let start = map(len, libc::MAP_NORESERVE)?;
    // Kernels without huge pages refuse, and have none to give. `MAP_STACK` has the same effect
    // from Linux 6.7 on.
    // SAFETY: `map` has just made this mapping; the advice changes no contents.
    let _ = unsafe { advise(start.as_ptr() as usize, len, libc::MADV_NOHUGEPAGE as usize) };
    Ok(start)
}

/// Maps `len` bytes of zeroed memory; CONTEXT: any.
pub(crate) fn map_pages(len: usize) -> Result<NonNull<u8>, Errno> {
    map(len, 0)
}

/// Maps `len` bytes of zeroed memory at a multiple of `align`, a power of two; CONTEXT: any.
pub(crate) fn map_pages_aligned(len: usize, align: usize) -> Result<NonNull<u8>, Errno> {
    debug_assert!(align.is_power_of_two());
    if align <= page_size() {
        return map_pages(len);
    }
    let len = round_up_page(len).ok_or(Errno(libc::ENOMEM))?;
    let whole = len
        .checked_add(align - page_size())
        .ok_or(Errno(libc::ENOMEM))?;
    let start = map_pages(whole)?.as_ptr();
    let before = start.align_offset(align);
    let after = whole - before - len;
    // SAFETY: both trimmed parts are in the mapping made above, outside the part that is returned,
    // and no pointer into them remains. `before + len <= whole`, because an aligned address is at
    // most `align - page_size()` after a page boundary (D4).
    unsafe {
        let aligned = start.add(before);
        if before > 0 {
            unmap(start, before);
        }
        if after > 0 {
            unmap(aligned.add(len), after);
        }
        Ok(NonNull::new_unchecked(aligned))
    }
}

/// Makes a private anonymous mapping with these additional flags.
fn map(len: usize, flags: i32) -> Result<NonNull<u8>, Errno> {
    if refuses(&FAIL_MAP_AFTER) {
        return Err(Errno(libc::ENOMEM));
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: without MAP_FIXED the kernel picks unused addresses (D4).
    let answer = unsafe {
        syscall6(
            libc::SYS_mmap,
            0,
            len,
            protection as usize,
            flags as usize,
            usize::MAX,
            0,
        )
    };
    let address = check(answer)?;
    NonNull::new(ptr::with_exposed_provenance_mut(address)).ok_or(Errno(libc::ENOMEM))
}

/// Changes the size of a mapping and moves it if necessary. On an error it stays as it was.
///
/// # Safety
/// `ptr..ptr + old_len` is one whole mapping made here, and after success no pointer into the old
/// addresses is used.
pub(super) unsafe fn remap(
    ptr: *mut u8,
    old_len: usize,
    new_len: usize,
) -> Result<NonNull<u8>, Errno> {
    if refuses(&FAIL_MAP_AFTER) {
        return Err(Errno(libc::ENOMEM));
    }
    let flags = libc::MREMAP_MAYMOVE as usize;
    // SAFETY: the range is one whole mapping, and no pointer into it is used afterwards (see
    // "Safety"; D9).
    let answer = unsafe { syscall4(libc::SYS_mremap, ptr as usize, old_len, new_len, flags) };
    let address = check(answer)?;
    NonNull::new(ptr::with_exposed_provenance_mut(address)).ok_or(Errno(libc::ENOMEM))
}

/// Returns pages and their addresses. If the kernel refuses, they stay mapped; CONTEXT: any.
///
/// # Safety
/// The range was mapped here and no pointer into it is used any more.
pub(crate) unsafe fn unmap(ptr: *mut u8, len: usize) {
    // SAFETY: the range was mapped here and no pointer into it is used any more (see "Safety"; D4).
    let answer = unsafe { syscall2(libc::SYS_munmap, ptr as usize, len) };
    debug_assert_eq!(answer, 0);
}

/// Makes a range fault on any access, at the cost of mappings of its own; CONTEXT: any.
///
/// # Safety
/// The range was mapped here, and every access to it is meant to fault.
pub(crate) unsafe fn protect_none(ptr: *mut u8, len: usize) -> Result<(), Errno> {
    let none = libc::PROT_NONE as usize;
    // SAFETY: the range was mapped here, and every later access to it is meant to fault (see
    // "Safety"; D4).
    let answer = unsafe { syscall3(libc::SYS_mprotect, ptr as usize, len, none) };
    check(answer).map(drop)
}

/// Returns the memory behind a range and keeps its addresses, which read as zero afterwards. Locked
/// memory (mlock) keeps its contents; CONTEXT: any.
///
/// # Safety
/// The range was mapped here and its contents are no longer needed.
pub(crate) unsafe fn dont_need(ptr: *mut u8, len: usize) {
    // SAFETY: the range was mapped here, and its contents are no longer needed (see "Safety"; D4).
    let _ = unsafe { advise(ptr as usize, len, libc::MADV_DONTNEED as usize) };
}

/// Makes a range fault on any access without a mapping of its own. Kernels before 6.13 return
/// EINVAL, as does locked memory; CONTEXT: any.
///
/// # Safety
/// The range was mapped here; its contents are lost, and every access to it is meant to fault.
pub(crate) unsafe fn guard_install(ptr: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: the range was mapped here, and its contents are no longer needed (see "Safety"; D4).
    unsafe { advise(ptr as usize, len, MADV_GUARD_INSTALL) }
}

/// Installs guards over many `(address, length)` ranges: up to 64 per system call where the kernel
/// can (6.14), else one by one. After an error some are in place; CONTEXT: any.
///
/// # Safety
/// As for `guard_install`, for every range.
pub(crate) unsafe fn guard_install_batch(ranges: &[(usize, usize)]) -> Result<(), Errno> {
    for batch in ranges.chunks(BATCH) {
        // ORDER: Relaxed; a hint. A thread that misses it makes one failing call. SAFETY: every
        // range was mapped here and its contents are no longer needed (see "Safety"; D4).
        if BATCHES_WORK.load(Relaxed) && unsafe { guard_in_one_call(batch) } {
            continue;
        }
        for &(address, len) in batch {
            // SAFETY: the range was mapped here and its contents are no longer needed (see
            // "Safety"). A second guard on the same range changes nothing.
            unsafe { advise(address, len, MADV_GUARD_INSTALL) }?;
        }
    }
    Ok(())
}

/// Installs at most `BATCH` guards with one call and returns whether all are in place.
///
/// # Safety
/// As for `guard_install_batch`.
unsafe fn guard_in_one_call(ranges: &[(usize, usize)]) -> bool {
    debug_assert!(ranges.len() <= BATCH);
    let mut vector = [libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; BATCH];
    let mut total = 0;
    for (slot, &(address, len)) in vector.iter_mut().zip(ranges) {
        slot.iov_base = ptr::with_exposed_provenance_mut(address);
        slot.iov_len = len;
        total += len;
    }
    // SAFETY: the kernel reads `ranges.len()` entries of this frame's vector. They name ranges that
    // were mapped here and whose contents are no longer needed (see "Safety"; D4).
    let answer = unsafe {
        syscall5(
            libc::SYS_process_madvise,
            PIDFD_SELF,
            vector.as_ptr() as usize,
            ranges.len(),
            MADV_GUARD_INSTALL,
            0,
        )
    };
    match check(answer) {
        Ok(done) => done == total,
        Err(errno) => {
            if matches!(errno.0, libc::EBADF | libc::ENOSYS | libc::EPERM) {
                // ORDER: Relaxed; a hint. A thread that misses it makes one failing call.
                BATCHES_WORK.store(false, Relaxed);
            }
            false
        }
    }
}

/// Advises the kernel about one range.
///
/// # Safety
/// The range was mapped here, and the effect of the advice on its contents is acceptable.
unsafe fn advise(address: usize, len: usize, advice: usize) -> Result<(), Errno> {
    // SAFETY: the range was mapped here, and the effect of the advice is acceptable (see "Safety").
    let answer = unsafe { syscall3(libc::SYS_madvise, address, len, advice) };
    check(answer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::child;

    /// How many bytes of the range are in memory, by `mincore`.
    fn resident(ptr: *mut u8, len: usize) -> usize {
        let mut pages = vec![0u8; len / page_size()];
        // SAFETY: the vector has one byte for each page of the range.
        let answer = unsafe { libc::mincore(ptr.cast(), len, pages.as_mut_ptr()) };
        assert_eq!(answer, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count() * page_size()
    }

    /// Whether the kernel can read the byte; a guard makes the call fail and not fault.
    fn readable(ptr: *mut u8) -> bool {
        let mut pipe = [0; 2];
        // SAFETY: the kernel checks the address it copies from, and the descriptors are this
        // function's own.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let written = syscall3(libc::SYS_write, pipe[1] as usize, ptr as usize, 1);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            written == 1
        }
    }

    /// The kernel's flags of the mapping at `address`.
    fn flags_at(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut is_it = false;
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = range.map(|(from, to)| (hex(from), hex(to))) {
                is_it = (from..to).contains(&address);
            } else if is_it && let Some(flags) = line.strip_prefix("VmFlags: ") {
                return flags.to_owned();
            }
        }
        panic!("no mapping at {address:#x}");
    }

    /// With huge pages for all mappings, a large stack would take 2 MiB at its first touch. From
    /// Linux 6.7 on `MAP_STACK` alone is enough; the flag must be there without it.
    #[test]
    fn address_space_for_stacks_is_never_backed_by_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return; // a kernel without huge pages
        }
        const LEN: usize = 8 << 20;
        let stacks = map_reserve(LEN).expect("address space").as_ptr();
        let flags = flags_at(stacks as usize + LEN / 2);
        assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
        // SAFETY: mapped above, and no pointer into it remains.
        unsafe { unmap(stacks, LEN) };
    }

    #[test]
    fn page_size_is_the_kernels() {
        // SAFETY: sysconf touches no memory of ours.
        assert_eq!(page_size(), unsafe { libc::sysconf(libc::_SC_PAGESIZE) }
            as usize);
        assert_eq!(round_up_page(0), Some(0));
        assert_eq!(round_up_page(1), Some(4096));
        assert_eq!(round_up_page(4096), Some(4096));
        assert_eq!(round_up_page(usize::MAX), None);
    }

    #[test]
    fn pages_are_zero_writable_and_given_back() {
        if !child::is_one() {
            return child::succeeds(module_path!(), "pages_are_zero_writable_and_given_back");
        }
        let len = 64 * page_size();
        let start = map_pages(len).expect("64 pages").as_ptr();
        // SAFETY: the mapping made above, which only this test uses (D4).
        unsafe {
            assert_eq!(*start.add(len - 1), 0);
            start.write_bytes(7, len);
            assert_eq!(resident(start, len), len);
            dont_need(start, len / 2);
            assert_eq!(resident(start, len), len / 2);
            assert_eq!((*start, *start.add(len - 1)), (0, 7));
            unmap(start, len);
        }
        // No other thread of this process maps anything there.
        assert!(!readable(start));
    }

    #[test]
    fn reservations_may_exceed_memory_and_cost_none() {
        let len = 1 << 40;
        let start = map_reserve(len).expect("address space").as_ptr();
        assert_eq!(resident(start, 1 << 20), 0);
        // SAFETY: the mapping made above, which only this test uses (D4).
        unsafe {
            *start.add(len - 1) = 1;
            unmap(start, len);
        }
        assert_eq!(map_reserve(0), Err(Errno(libc::EINVAL)));
        assert_eq!(map_reserve(1 << 60), Err(Errno(libc::ENOMEM)));
    }

    #[test]
    fn aligned_mappings_are_aligned_and_trimmed() {
        for (len, align) in [(1, 1), (4096, 4096), (5000, 1 << 16), (1 << 21, 1 << 21)] {
            let start = map_pages_aligned(len, align).expect("pages").as_ptr();
            assert_eq!(start as usize % align.max(page_size()), 0);
            let whole = round_up_page(len).expect("small");
            // SAFETY: the mapping made above, which only this test uses (D4).
            unsafe {
                start.write_bytes(1, whole);
                unmap(start, whole);
            }
        }
        let refused = map_pages_aligned(usize::MAX - 4096, 1 << 20);
        assert_eq!(refused, Err(Errno(libc::ENOMEM)));
    }

    #[test]
    fn protected_pages_fault() {
        if !child::is_one() {
            return child::succeeds(module_path!(), "protected_pages_fault");
        }
        let start = map_pages(2 * page_size()).expect("two pages").as_ptr();
        // SAFETY: the mapping made above, which only this test uses (D4).
        unsafe {
            protect_none(start, page_size()).expect("protect");
            assert!(!readable(start) && readable(start.add(page_size())));
            unmap(start, 2 * page_size());
            let gone = protect_none(start, page_size());
            assert_eq!(gone, Err(Errno(libc::ENOMEM)));
        }
    }

    /// Every second page of `count` is guarded by `install`, the others are not.
    fn guards_hold(count: usize, install: impl FnOnce(&[(usize, usize)]) -> Result<(), Errno>) {
        let len = 2 * count * page_size();
        let start = map_reserve(len).expect("space").as_ptr();
        let ranges: Vec<_> = (0..count)
            .map(|i| (start as usize + 2 * i * page_size(), page_size()))
            .collect();
        match install(&ranges) {
            // A kernel before 6.13: the caller uses `protect_none`.
            Err(errno) => assert_eq!(errno, Errno(libc::EINVAL)),
            Ok(()) => {
                for i in [0, 1 % count, count / 2, count - 1] {
                    let guard = start.wrapping_add(2 * i * page_size());
                    assert!(!readable(guard), "guard {i}");
                    assert!(readable(guard.wrapping_add(page_size())), "page {i}");
                }
            }
        }
        // SAFETY: the mapping made above, which only this test uses (D4).
        unsafe { unmap(start, len) };
    }

    #[test]
    fn guards_fault_alone_and_in_batches() {
        // SAFETY: `guards_hold` passes ranges of its own mapping, whose contents no test needs
        // (D4).
        guards_hold(3, |ranges| unsafe {
            ranges
                .iter()
                .try_for_each(|&(at, len)| guard_install(at as *mut u8, len))
        });
        // Fewer than one call takes, as many, and more.
        for count in [1, 2, BATCH, BATCH + 1, 3 * BATCH + 5] {
            // SAFETY: `guards_hold` passes ranges of its own mapping, whose contents no test needs
            // (D4).
            guards_hold(count, |ranges| unsafe { guard_install_batch(ranges) });
        }
        // Without batches, as an older kernel leaves the hint. Other tests still work then.
        BATCHES_WORK.store(false, Relaxed);
        // SAFETY: `guards_hold` passes ranges of its own mapping, whose contents no test needs
        // (D4).
        guards_hold(BATCH + 1, |ranges| unsafe { guard_install_batch(ranges) });
        BATCHES_WORK.store(true, Relaxed);
    }

    #[test]
    fn a_batch_reports_the_range_that_fails() {
        let start = map_reserve(page_size()).expect("space").as_ptr();
        let ranges = [(start as usize, page_size()), (1, page_size())];
        // SAFETY: the mapping made above, and an address that the kernel refuses (D4).
        unsafe {
            assert_eq!(guard_install_batch(&ranges), Err(Errno(libc::EINVAL)));
            assert_eq!(guard_install_batch(&[]), Ok(()));
            unmap(start, page_size());
        }
    }
}
