//! A shared object with one thread-local and nothing else, written by hand.
//!
//! It exists so that libc itself hands out its surplus of static thread-local storage
//! (`surplus.rs`). The object has no code and no name of its own. One relocation asks for the
//! distance of its thread-local from the thread pointer, which only a thread-local with a fixed
//! place has (*initial-exec*). So libc must place it in every thread's block, or refuse the object.
//!
//! ```text
//!  header │ segments │ dynamic │ symbols │ relocations │ hash │ place │ strings
//!  ◄────────────────── one segment, read and write, not executable ───────────►
//! ```

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::io::Write;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd};

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym};

use crate::arch::block::{ELF_MACHINE, ELF_THREAD_OFFSET};
use crate::sys;

/// An entry of the dynamic section: what it is, and an address or a number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// A relocation: where to write, which kind and symbol, and what to add.
#[repr(C)]
struct Relocation {
    place: u64,
    kind: u64,
    addend: i64,
}

/// Tags of the dynamic section, by their names in the ELF specification.
const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_RELAENT: i64 = 9;
const DT_STRSZ: i64 = 10;
const DT_SYMENT: i64 = 11;
const DT_FLAGS: i64 = 30;
/// In [`DT_FLAGS`]: the object has thread-locals in a fixed place.
const DF_STATIC_TLS: u64 = 0x10;

/// The file, as it is and as libc maps it: addresses are offsets from its start.
#[repr(C)]
pub(super) struct Object {
    header: Elf64_Ehdr,
    segments: [Elf64_Phdr; 4],
    dynamic: [Dynamic; 10],
    /// The first symbol of every object is empty. The relocation names it and so means the object
    /// itself.
    symbols: [Elf64_Sym; 1],
    relocations: [Relocation; 1],
    /// One bucket and one symbol, which is the empty one.
    hash: [u32; 4],
    /// Where libc writes the distance.
    place: u64,
    strings: [u8; 8],
}

const LEN: u64 = size_of::<Object>() as u64;

impl Object {
    /// An object whose thread-local has `size` bytes and no alignment.
    pub(super) const fn new(size: usize) -> Object {
        Object {
            header: Elf64_Ehdr {
                e_ident: [
                    0x7f, b'E', b'L', b'F', // the magic number
                    2,    // 64 bits
                    1,    // little-endian
                    1,    // version
                    0, 0, 0, 0, 0, 0, 0, 0, 0, // no special ABI, padding
                ],
                e_type: libc::ET_DYN,
                e_machine: ELF_MACHINE,
                e_version: 1,
                e_entry: 0,
                e_phoff: offset_of!(Object, segments) as u64,
                e_shoff: 0,
                e_flags: 0,
                e_ehsize: size_of::<Elf64_Ehdr>() as u16,
                e_phentsize: size_of::<Elf64_Phdr>() as u16,
                e_phnum: 4,
                e_shentsize: 0,
                e_shnum: 0,
                e_shstrndx: 0,
            },
            segments: [
                segment(libc::PT_LOAD, 0, LEN, sys::page_size() as u64),
                segment(
                    libc::PT_DYNAMIC,
                    offset_of!(Object, dynamic) as u64,
                    (10 * size_of::<Dynamic>()) as u64,
                    8,
                ),
                // Zeroes of this size. The file has no initial values.
                Elf64_Phdr {
                    p_filesz: 0,
                    p_memsz: size as u64,
                    ..segment(libc::PT_TLS, LEN, 0, 1)
                },
                // Without it libc would make the stacks of all threads executable.
                segment(libc::PT_GNU_STACK, 0, 0, 16),
            ],
            dynamic: [
                entry(DT_HASH, offset_of!(Object, hash)),
                entry(DT_STRTAB, offset_of!(Object, strings)),
                entry(DT_STRSZ, 8),
                entry(DT_SYMTAB, offset_of!(Object, symbols)),
                entry(DT_SYMENT, size_of::<Elf64_Sym>()),
                entry(DT_RELA, offset_of!(Object, relocations)),
                entry(DT_RELASZ, size_of::<Relocation>()),
                entry(DT_RELAENT, size_of::<Relocation>()),
                entry(DT_FLAGS, DF_STATIC_TLS as usize),
                entry(DT_NULL, 0),
            ],
            symbols: [Elf64_Sym {
                st_name: 0,
                st_info: 0,
                st_other: 0,
                st_shndx: 0,
                st_value: 0,
                st_size: 0,
            }],
            relocations: [Relocation {
                place: offset_of!(Object, place) as u64,
                kind: ELF_THREAD_OFFSET,
                addend: 0,
            }],
            hash: [1, 1, 0, 0],
            place: 0,
            strings: [0; 8],
        }
    }

    /// The same with an alignment of its thread-local.
    #[cfg(test)]
    pub(super) fn aligned(mut self, align: u64) -> Object {
        self.segments[2].p_align = align;
        self
    }

    fn bytes(&self) -> &[u8] {
        const {
            let parts = size_of::<Elf64_Ehdr>()
                + 4 * size_of::<Elf64_Phdr>()
                + 10 * size_of::<Dynamic>()
                + size_of::<Elf64_Sym>()
                + size_of::<Relocation>()
                + 32;
            assert!(size_of::<Object>() == parts, "no padding");
        }
        // SAFETY: a struct of integers without padding, by the comparison above. So each of its
        // bytes has a value.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Object>()) }
    }

    /// Writes the object into a file that is in memory only. In user context, on a thread that ends
    /// soon.
    pub(super) fn into_file(self) -> io::Result<ObjectFile> {
        if file_size_max() < LEN {
            return Err(io::ErrorKind::FileTooLarge.into()); // SIGXFSZ would end the program
        }
        let mut file = memory_file()?;
        file.write_all(self.bytes())?;
        // The name must lead nowhere once the object is loaded. libc takes objects of the same name
        // for the same object. A debugger opens the name in its own process: `/proc/self/fd/3`
        // might be a pipe there. So the name has this thread's id, and the thread ends.
        let (thread, fd) = (sys::gettid(), file.as_raw_fd());
        let path = format!("/proc/self/task/{thread}/fd/{fd}");
        Ok(ObjectFile {
            path: CString::new(path)?,
            _file: file,
        })
    }
}

/// An object that can be loaded by its path while this exists.
pub(super) struct ObjectFile {
    pub(super) path: CString,
    _file: File,
}

const fn segment(kind: u32, at: u64, len: u64, align: u64) -> Elf64_Phdr {
    Elf64_Phdr {
        p_type: kind,
        p_flags: libc::PF_R | libc::PF_W,
        p_offset: at,
        p_vaddr: at,
        p_paddr: at,
        p_filesz: len,
        p_memsz: len,
        p_align: align,
    }
}

const fn entry(tag: i64, value: usize) -> Dynamic {
    Dynamic {
        tag,
        value: value as u64,
    }
}

/// An empty file in memory, which is not executable if the kernel knows such files.
fn memory_file() -> io::Result<File> {
    /// `MFD_NOEXEC_SEAL`, from Linux 6.3 on.
    const NO_EXEC: u32 = 8;
    let create = |flags: u32| {
        // SAFETY: the kernel reads the name.
        unsafe { libc::memfd_create(c"gosched-static-tls".as_ptr(), flags) }
    };
    let mut fd = create(libc::MFD_CLOEXEC | NO_EXEC);
    if fd == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        fd = create(libc::MFD_CLOEXEC);
    }
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which is this function's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The size that a file of this process may grow to, files in memory included.
fn file_size_max() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the struct of this frame. If the call fails, the limit stays 0.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}
