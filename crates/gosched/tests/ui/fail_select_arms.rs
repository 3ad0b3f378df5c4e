//! What `select!` says of arms that are none. The arms after a wrong one do not matter.

use gosched::chan::{Receiver, Sender, select, select_biased};

fn whole(r: &Receiver<i32>) {
    select! {}
    select_biased! {}
    select! { default => {}, default => {} }
    select! { default => {} recv(r) -> _ => {} default(std::time::Duration::ZERO) => {} }
}

fn names(r: &Receiver<i32>) {
    select! { receive(r) -> _ => {} }
    select! { recv(r) -> _ => {}, r -> _ => {} }
    select! { recv(r) -> _ => {}, , default => {} }
    select! { 5 }
    select! { recv(r) -> _ => {}; recv(r) -> _ => {} }
}

fn arguments(s: &Sender<i32>, r: &Receiver<i32>) {
    select! { recv }
    select! { recv => {} }
    select! { recv -> _ => {} }
    select! { recv r -> _ => {} }
    select! { recv[r] -> _ => {} }
    select! { recv() -> _ => {} }
    select! { recv(r, r) -> _ => {} }
    select! { recv(r => r) -> _ => {} }
    select! { send => {} }
    select! { send s -> _ => {} }
    select! { send() -> _ => {} }
    select! { send(s) -> _ => {} }
    select! { send(s, 1, 2) -> _ => {} }
    select! { default[1] => {} }
    select! { default(std::time::Duration::ZERO, 2) => {} }
    select! { default { } }
}

fn results(s: &Sender<i32>, r: &Receiver<i32>) {
    select! { recv(r) }
    select! { recv(r) => {} }
    select! { send(s, 1) => {} }
    select! { recv(r) msg => {} }
    select! { recv(r) -> }
    select! { recv(r) -> => {} }
    select! { recv(r) -> msg }
    select! { recv(r) -> msg -> other => {} }
    select! { recv(r) -> msg {} }
    select! { default }
    select! { default() }
    select! { default -> msg => {} }
    select! { default() -> msg => {} }
}

fn bodies(s: &Sender<i32>, r: &Receiver<i32>) {
    select! { recv(r) -> msg => }
    select! { recv(r) -> msg =>, default => {} }
    select! { recv(r) -> msg => recv(r) -> msg => {} }
    select! { recv(r) -> msg => send(s, 1) -> msg => {} }
    select! { recv(r) -> msg => default => {} }
    select! { default => }
    select! { recv(r) -> msg => drop(msg) default => {} }
    select! { recv(r) -> msg => println!("{msg:?}") send(s, 1) -> _ => {} }
    select! { recv(r) -> msg => drop(msg); default => {} }
    select! { recv(r) -> msg => { drop(msg) }; default => {} }
}

fn main() {}
