//! Functions of the library under names that libc has too.

/// Defines the function `$name` for the linker: a jump to `$target`. It is weak, so that a program
/// may have its own. With `.hidden` in `$visibility` shared libraries keep libc's, with `.weak`
/// they find this one first.
macro_rules! export_weak {
    ($name:literal, $visibility:literal, $target:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.gosched_", $name, ",\"ax\",@progbits"),
            concat!(".weak ", $name),
            concat!($visibility, " ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            "jmp {target}",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            target = sym $target,
        );
    };
}
pub(crate) use export_weak;
