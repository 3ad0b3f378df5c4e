//! A real redis by the blocking client of the crate `redis`.

use redis::{Client, Connection, cmd, pipe};

use crate::crowd::{all_wait, join_all, until};

fn connect() -> Connection {
    let address = std::env::var("GOSCHED_REDIS");
    let address = address.expect(
        "GOSCHED_REDIS is not set: run `scripts/services run cargo test -p gosched-programs`",
    );
    Client::open(address).unwrap().get_connection().unwrap()
}

pub(super) fn run(connections: usize) {
    let id = std::process::id();
    let mut main = connect();
    let goroutines = (0..connections).map(|i| gosched::thread::spawn(move || client(i, id)));
    let goroutines = goroutines.collect::<Vec<_>>();
    let name = format!(" name=programs-{id} ");
    until("all connections wait for a value", || {
        let clients: String = cmd("CLIENT").arg("LIST").query(&mut main).unwrap();
        let blocked = clients
            .lines()
            .filter(|l| l.contains(&name) && l.contains(" flags=b "));
        blocked.count() == connections
    });
    all_wait(connections);
    let mut push = cmd("RPUSH");
    push.arg(format!("work-{id}"));
    (0..connections).for_each(|k| _ = push.arg(k));
    push.query::<usize>(&mut main).unwrap();
    let mut taken = join_all(goroutines);
    taken.sort_unstable();
    assert!(
        taken.iter().copied().eq(0..connections),
        "each value once: {taken:?}"
    );
    let total: usize = cmd("GET")
        .arg(format!("total-{id}"))
        .query(&mut main)
        .unwrap();
    println!(
        "{connections} connections took {} values and counted {total}",
        taken.len()
    );
    let all: Vec<String> = cmd("KEYS").arg(format!("*-{id}")).query(&mut main).unwrap();
    cmd("DEL").arg(all).query::<usize>(&mut main).unwrap();
}

/// Takes one value, and returns it.
fn client(i: usize, id: u32) -> usize {
    let mut connection = connect();
    let name = format!("programs-{id}");
    cmd("CLIENT")
        .arg("SETNAME")
        .arg(name)
        .exec(&mut connection)
        .unwrap();
    let take = cmd("BLPOP")
        .arg(format!("work-{id}"))
        .arg(0)
        .query(&mut connection);
    let (_, value): (String, usize) = take.unwrap();
    // Many commands and answers in one go.
    let own = format!("own-{i}-{id}");
    let mut commands = pipe();
    for k in 0..20 {
        commands
            .cmd("RPUSH")
            .arg(&own)
            .arg("y".repeat(k * 100))
            .ignore();
        commands.cmd("INCR").arg(format!("total-{id}")).ignore();
    }
    commands.cmd("LRANGE").arg(&own).arg(0).arg(-1);
    let (list,): (Vec<String>,) = commands.query(&mut connection).unwrap();
    assert!(list.iter().map(String::len).eq((0..20).map(|k| k * 100)));
    value
}
