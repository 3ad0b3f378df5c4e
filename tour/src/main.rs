//! A guided run through gosched.
fn main() {
    gosched::run(|| println!("hello from goroutine {:?}", gosched::thread::current().id()));
}
