//! `ureq_4000`: many requests at once by an unmodified crate that blocks.

use std::time::Instant;

use super::Tasks;
use crate::common::{Figures, metric, micros, own_cpu};
use crate::requests::{Client, Server};

/// A task for each request. The server answers when all requests have come.
pub fn requests<T: Tasks>(n: usize) -> Figures {
    let server = Server::start(n).map_err(|error| error.to_string())?;
    let client = Client::of(&server);
    let (start, cpu) = (Instant::now(), own_cpu());
    T::run(move || {
        let spawn = |_| {
            let client = client.clone();
            T::spawn(move || client.fetch())
        };
        let tasks: Vec<_> = (0..n).map(spawn).collect();
        tasks.into_iter().try_for_each(T::join)
    })?;
    let (time, cpu) = (start.elapsed(), own_cpu() - cpu);
    let served = server.finish()?;
    Ok(vec![
        metric("threads", served.threads as f64, "count"),
        metric("time", micros(time) / n as f64, "us"),
        metric(
            "cpu",
            micros(cpu.saturating_sub(served.cpu)) / n as f64,
            "us",
        ),
    ])
}
