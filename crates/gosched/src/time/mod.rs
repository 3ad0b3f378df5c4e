//! Time: sleeping, timers, tickers.
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
//!     assert!(seen >= 1);
//! });
//! ```
//!
//! Nothing fires early. `Duration::MAX` never comes, `Duration::ZERO` is now.

mod sleep;
mod timer;

pub use self::sleep::{sleep, sleep_until};
pub use self::timer::{Ticker, Timer, after_func};
