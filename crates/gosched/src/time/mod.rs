//! Sleeping, timers and tickers, as in Go's `time` package.
//!
//! They block or start goroutines, not threads.
//!
//! ```
//! use gosched::chan::select;
//! use gosched::time::{Ticker, Timer};
//! use std::time::Duration;
//!
//! gosched::run(|| {
//!     let end = Timer::new(Duration::from_millis(20));
//!     let ticks = Ticker::new(Duration::from_millis(2));
//!     let mut seen = 0;
//!     loop {
//!         select! {
//!             recv(ticks.chan()) -> _ => seen += 1,
//!             recv(end.chan()) -> _ => break,
//!         }
//!     }
//!     println!("{seen} ticks in 20 ms");
//! });
//! ```
//!
//! Nothing fires early. `Duration::ZERO` means now, `Duration::MAX` means never.

mod sleep;
mod timer;
pub(crate) mod timer_spawn;

pub use self::sleep::{sleep, sleep_until};
pub use self::timer::{Ticker, Timer, after_func};
