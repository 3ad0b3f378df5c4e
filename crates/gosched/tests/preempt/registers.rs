//! What a loop keeps in registers, below its stack pointer and in `errno` is the same after every
//! preemption.
//!
//! Each loop is one block of assembler that mixes its registers with each other, round after round,
//! so that what comes out depends on every bit of every round. On a plain thread, which is never
//! preempted, the same rounds give the same result.

use std::arch::{asm, is_x86_feature_detected};

use super::*;

/// Rounds of a loop: some milliseconds to some tens of them.
const ROUNDS: u64 = 3_000_000;
/// How often each goroutine goes through its loop.
const TIMES: usize = 4;

/// As wide as a register can be.
type Wide = [u64; 8];

/// First contents of registers.
fn seeds<const N: usize>(of: u64) -> [Wide; N] {
    let mut rng = common::Rng::new(of);
    std::array::from_fn(|_| std::array::from_fn(|_| rng.next()))
}

/// xmm0 to xmm15.
fn sse() -> Vec<u64> {
    let mut regs: [Wide; 16] = seeds(1);
    // SAFETY: reads and writes `regs`; says what it clobbers.
    unsafe {
        asm!(
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "movups xmm\\i, [{at} + 64*\\i]",
            ".endr",
            "2:",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14",
            "paddq xmm\\i, xmm15",
            ".endr",
            "paddq xmm15, xmm3",
            "dec {rounds}",
            "jnz 2b",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "movups [{at} + 64*\\i], xmm\\i",
            ".endr",
            at = in(reg) regs.as_mut_ptr(),
            rounds = inout(reg) ROUNDS => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        );
    }
    regs.concat()
}

/// ymm0 to ymm15, upper halves included; nothing where the CPU has none.
fn avx() -> Vec<u64> {
    let mut regs: [Wide; 16] = seeds(2);
    if !is_x86_feature_detected!("avx2") {
        return Vec::new();
    }
    // SAFETY: the loop reads and writes `regs` of this frame only, and all registers that it
    // changes are declared. The CPU has AVX2.
    unsafe {
        asm!(
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "vmovdqu ymm\\i, [{at} + 64*\\i]",
            ".endr",
            "2:",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14",
            "vpaddq ymm\\i, ymm\\i, ymm15",
            ".endr",
            "vpaddq ymm15, ymm15, ymm3",
            "dec {rounds}",
            "jnz 2b",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "vmovdqu [{at} + 64*\\i], ymm\\i",
            ".endr",
            "vzeroupper",
            at = in(reg) regs.as_mut_ptr(),
            rounds = inout(reg) ROUNDS => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        );
    }
    regs.concat()
}

/// zmm0 to zmm31 and the mask registers; nothing where the CPU has none.
fn avx512() -> Vec<u64> {
    let (mut regs, mut masks): ([Wide; 32], [Wide; 1]) = (seeds(3), seeds(4));
    if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512bw") {
        return Vec::new();
    }
    // SAFETY: the loop reads and writes `regs` and `masks` of this frame only, and all registers
    // that it changes are declared. The CPU has AVX-512.
    unsafe {
        asm!(
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "vmovdqu64 zmm\\i, [{at} + 64*\\i]",
            ".endr",
            ".irp i,0,1,2,3,4,5,6,7",
            "kmovq k\\i, [{masks} + 8*\\i]",
            ".endr",
            "2:",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
            "vpaddq zmm\\i, zmm\\i, zmm31",
            ".endr",
            "vpaddq zmm31, zmm31, zmm5",
            ".irp i,0,1,2,3,4,5,6",
            "kxorq k\\i, k\\i, k7",
            ".endr",
            "kxnorq k7, k7, k1",
            "dec {rounds}",
            "jnz 2b",
            ".irp i,0,1,2,3,4,5,6,7",
            "kmovq [{masks} + 8*\\i], k\\i",
            ".endr",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "vmovdqu64 [{at} + 64*\\i], zmm\\i",
            ".endr",
            "vzeroupper",
            at = in(reg) regs.as_mut_ptr(),
            masks = in(reg) masks.as_mut_ptr(),
            rounds = inout(reg) ROUNDS => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            out("k0") _, out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _, out("k7") _,
            options(nostack)
        );
    }
    [regs.concat(), masks.concat()].concat()
}

/// The general registers, and the carry flag from round to round.
fn general() -> Vec<u64> {
    let mut regs: [Wide; 2] = seeds(5);
    // SAFETY: the loop reads and writes `regs` of this frame only, and all registers that it
    // changes are declared or restored.
    unsafe {
        asm!(
            "mov rax, [rdi]", "mov rdx, [rdi + 8]", "mov rsi, [rdi + 16]", "mov r8, [rdi + 24]",
            "mov r9, [rdi + 32]", "mov r10, [rdi + 40]", "mov r11, [rdi + 48]", "mov r12, [rdi + 56]",
            "mov r13, [rdi + 64]", "mov r14, [rdi + 72]", "mov r15, [rdi + 80]",
            "clc",
            "2:",
            "adc rax, rdx", "adc rdx, rsi", "adc rsi, r8", "adc r8, r9", "adc r9, r10", "adc r10, r11",
            "adc r11, r12", "adc r12, r13", "adc r13, r14", "adc r14, r15", "adc r15, rax",
            "dec rcx",
            "jnz 2b",
            "mov [rdi], rax", "mov [rdi + 8], rdx", "mov [rdi + 16], rsi", "mov [rdi + 24], r8",
            "mov [rdi + 32], r9", "mov [rdi + 40], r10", "mov [rdi + 48], r11", "mov [rdi + 56], r12",
            "mov [rdi + 64], r13", "mov [rdi + 72], r14", "mov [rdi + 80], r15",
            in("rdi") regs.as_mut_ptr(),
            inout("rcx") ROUNDS => _,
            out("rax") _, out("rdx") _, out("rsi") _, out("r8") _, out("r9") _, out("r10") _,
            out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            options(nostack)
        );
    }
    regs.concat()
}

/// The x87 stack to 64 bits of mantissa, under a control word of its own (rounds up), which must be
/// there at the end.
fn x87() -> Vec<u64> {
    let up: u16 = 0x0b7f;
    let (mut before, mut after) = (0u16, 0u16);
    let first: [f64; 7] = [0.1, 1.7, 2.3e5, 1.0 / 3.0, 7.5e-3, 9.1, 5.5];
    let mut last = [[0u8; 16]; 7];
    // SAFETY: works on the variables above and leaves stack and control word as they were.
    unsafe {
        asm!(
            "fnstcw word ptr [{before}]",
            "fldcw word ptr [{up}]",
            ".irp i,0,1,2,3,4,5,6",
            "fld qword ptr [{first} + 8*\\i]",
            ".endr",
            "2:",
            ".irp i,1,2,3,4,5,6",
            "fadd st(\\i), st",
            ".endr",
            "dec {rounds}",
            "jnz 2b",
            "fnstcw word ptr [{after}]",
            ".irp i,0,1,2,3,4,5,6",
            "fstp tbyte ptr [{last} + 16*\\i]",
            ".endr",
            "fldcw word ptr [{before}]",
            before = in(reg) &raw mut before,
            after = in(reg) &raw mut after,
            up = in(reg) &raw const up,
            first = in(reg) first.as_ptr(),
            last = in(reg) last.as_mut_ptr(),
            rounds = inout(reg) ROUNDS => _,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            options(nostack)
        );
    }
    assert_eq!(after, up, "the x87 control word");
    let words = last.as_flattened().chunks_exact(8);
    words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect()
}

/// Sums under a rounding mode of their own in MXCSR (up, denormals to zero), which must be there at
/// the end.
fn mxcsr() -> Vec<u64> {
    let own: u32 = 0x1f80 | 0x4000 | 0x8040;
    let (mut before, mut after) = (0u32, 0u32);
    let mut sums = [0.1f64, 0.3, 1e-9, 7.7];
    // SAFETY: the code reads and writes variables of this frame only, restores MXCSR, and declares
    // the registers that it changes.
    unsafe {
        asm!(
            "stmxcsr dword ptr [{before}]",
            "ldmxcsr dword ptr [{own}]",
            ".irp i,0,1,2,3",
            "movsd xmm\\i, [{sums} + 8*\\i]",
            ".endr",
            "2:",
            "addsd xmm0, xmm1",
            "addsd xmm2, xmm1",
            "addsd xmm3, xmm2",
            "dec {rounds}",
            "jnz 2b",
            "stmxcsr dword ptr [{after}]",
            ".irp i,0,1,2,3",
            "movsd [{sums} + 8*\\i], xmm\\i",
            ".endr",
            "ldmxcsr dword ptr [{before}]",
            before = in(reg) &raw mut before,
            after = in(reg) &raw mut after,
            own = in(reg) &raw const own,
            sums = in(reg) sums.as_mut_ptr(),
            rounds = inout(reg) ROUNDS => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack)
        );
    }
    assert_eq!(after & !0x3f, own, "MXCSR but for the sticky flags");
    sums.map(f64::to_bits).to_vec()
}

/// The 128 bytes below the stack pointer belong to a function that calls nothing.
fn red_zone() -> Vec<u64> {
    let mut words: [Wide; 2] = seeds(6);
    // SAFETY: works on `words` and on the red zone, which is free: the block may use the stack.
    unsafe {
        asm!(
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "mov rax, [{at} + 8*\\i]",
            "mov [rsp - 8*\\i - 8], rax",
            ".endr",
            "2:",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14",
            "add [rsp - 8*\\i - 8], rax",
            ".endr",
            "add rax, [rsp - 24]",
            "add [rsp - 128], rax",
            "dec {rounds}",
            "jnz 2b",
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "mov rax, [rsp - 8*\\i - 8]",
            "mov [{at} + 8*\\i], rax",
            ".endr",
            at = in(reg) words.as_mut_ptr(),
            rounds = inout(reg) ROUNDS => _,
            out("rax") _,
        );
    }
    words.concat()
}

/// What the compiler makes of sums.
fn sums() -> Vec<u64> {
    let mut sums = [0.0f64; 8];
    for round in 0..ROUNDS / 8 {
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum += 1.0 / (round + at as u64 + 1) as f64;
        }
    }
    sums.map(f64::to_bits).to_vec()
}

type Loop = fn() -> Vec<u64>;

const LOOPS: [(&str, Loop); 8] = [
    ("SSE", sse),
    ("AVX", avx),
    ("AVX-512", avx512),
    ("general registers", general),
    ("x87", x87),
    ("MXCSR", mxcsr),
    ("the red zone", red_zone),
    ("sums", sums),
];

/// Wakes up often, so that another goroutine is preempted each time.
fn presser(stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        while !stop.load(SeqCst) {
            thread::sleep(Duration::from_micros(700));
        }
    })
}

#[test]
fn d7_registers_and_red_zone_survive() {
    let _turn = beside();
    let alike = LOOPS.map(|(name, run)| (name, run, run()));
    let runtime = runtime(2);
    within(LONG, "the loops", || {
        checked(&runtime, || {
            let stop = Arc::new(AtomicBool::new(false));
            let pressers = [presser(&stop), presser(&stop)];
            let mut handles = Vec::new();
            for (name, run, expected) in alike.iter().chain(&alike).cloned() {
                handles.push(thread::spawn(move || {
                    for _ in 0..TIMES {
                        assert_eq!(run(), expected, "{name}");
                    }
                }));
            }
            handles.into_iter().for_each(|h| h.join().unwrap());
            stop.store(true, SeqCst);
            pressers.into_iter().for_each(|h| h.join().unwrap());
        });
    });
    let parked = runtime.metrics().threads_held_by_preempted;
    assert!(parked > 5, "hardly anybody was preempted: {parked}");
}

fn errno() -> *mut i32 {
    // SAFETY: every thread, and every goroutine, has one.
    unsafe { libc::__errno_location() }
}

/// `errno` is the goroutine's, and no handler of the runtime changes it.
#[test]
fn d7_errno_survives() {
    let _turn = beside();
    within(LONG, "the loops", || {
        checked(&runtime(2), || {
            let stop = Arc::new(AtomicBool::new(false));
            let pressers = [presser(&stop), presser(&stop)];
            let hog = |at: i32| {
                move || {
                    let own = errno();
                    for round in 0..3000 {
                        let value = at * 10_000 + round;
                        // SAFETY: this goroutine's own, which lives as long as it does.
                        let read = unsafe {
                            own.write_volatile(value);
                            spin(100_000);
                            own.read_volatile()
                        };
                        assert_eq!(read, value);
                        assert_eq!(errno(), own);
                    }
                }
            };
            let handles: Vec<_> = (1..=5).map(|at| thread::spawn(hog(at))).collect();
            handles.into_iter().for_each(|h| h.join().unwrap());
            stop.store(true, SeqCst);
            pressers.into_iter().for_each(|h| h.join().unwrap());
        });
    });
}
