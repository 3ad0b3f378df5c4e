use super::*;

fn addrs(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn families_take_turns_beginning_with_the_first() {
    let turns = |texts: &[&str]| take_turns(addrs(texts));
    assert_eq!(
        turns(&["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1", "1.0.0.2:1"]),
        addrs(&["[::1]:1", "1.0.0.1:1", "[::2]:1", "1.0.0.2:1", "[::3]:1"])
    );
    assert_eq!(
        turns(&["1.0.0.1:1", "[::1]:1", "[::2]:1"]),
        addrs(&["1.0.0.1:1", "[::1]:1", "[::2]:1"])
    );
    let one_family = ["1.0.0.3:1", "1.0.0.1:1", "1.0.0.2:1"];
    assert_eq!(turns(&one_family), addrs(&one_family));
    assert_eq!(turns(&[]), []);
}

#[test]
fn a_plan_says_what_is_tried() {
    let all = addrs(&["[::1]:1", "[::2]:1", "1.0.0.1:1"]);
    let mut plan = Plan {
        keeps_order: true,
        ..Plan::default()
    };
    assert_eq!(plan.order(all.clone()).unwrap(), all);
    plan.local = Some("127.0.0.1:0".parse().unwrap());
    assert_eq!(plan.order(all.clone()).unwrap(), all[2..]);
    let error = plan.order(all[..2].to_vec()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let none = Plan::default().order(Vec::new()).unwrap_err();
    let stds = std::net::TcpStream::connect(&[][..]).unwrap_err();
    assert_eq!(
        (none.kind(), none.to_string()),
        (stds.kind(), stds.to_string())
    );
}

/// In whatever order the attempts fail, the error is that of the last address.
#[test]
fn the_error_is_that_of_the_last_address() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let limit = Limit::NONE;
        let mut race = Race::new(&limit);
        for number in order {
            race.note(number, io::Error::other(number.to_string()));
        }
        assert_eq!(race.failed().to_string(), "2");
    }
}

/// The last attempt to fail in time is not the last address: its socket fails first.
#[test]
fn errors_come_from_sockets_too() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let error = connect(vec![closed, closed], &Plan::default(), &Limit::NONE).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}
