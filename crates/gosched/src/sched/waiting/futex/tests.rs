//! Futexes of goroutines, without the hook.
