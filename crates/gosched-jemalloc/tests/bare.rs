//! jemalloc as it is, without the wrapper: a heap for every goroutine that allocates. That costs memory and must be right.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A large closure is boxed, a dropped handle makes the goroutine free its own packet: both near its end, when its
/// thread-locals, jemalloc's among them, are gone.
#[test]
fn goroutines_end_without_a_trace_in_the_allocator() {
    for procs in [1, 2, 4] {
        let runtime = gosched::Runtime::builder().procs(procs).build().unwrap();
        let sum = runtime.run(|| {
            let mut handles = Vec::new();
            for n in 0..3_000usize {
                let large = [n; 64];
                let body = move || {
                    let words: Vec<usize> = large[..1 + n % 64].to_vec();
                    gosched::yield_now();
                    words.iter().sum::<usize>()
                };
                match n % 3 {
                    0 => handles.push((n, gosched::thread::spawn(body))),
                    1 => drop(gosched::thread::spawn(body)),
                    _ => gosched::go(move || assert!(body() >= n)),
                }
            }
            handles
                .into_iter()
                .map(|(n, handle)| usize::from(handle.join().unwrap() == n * (1 + n % 64)))
                .sum::<usize>()
        });
        assert_eq!(sum, 1_000);
    }
}
