//! A small HTTP/1.1 server for runtimes that have none of their own: parsed by httparse, kept
//! alive, one answer.

/// What to do with the bytes received so far.
pub enum Step {
    /// Read more.
    More,
    /// Send this, and continue if the flag is set.
    Answer(Vec<u8>, bool),
}

/// Takes the first request out of `buffer`, if it is complete.
pub fn step(buffer: &mut Vec<u8>) -> Step {
    const HEADERS: usize = 64;
    const HEAD_MAX: usize = 16 << 10;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(buffer) {
        Ok(httparse::Status::Complete(head)) if head <= HEAD_MAX => head,
        Ok(httparse::Status::Partial) if buffer.len() < HEAD_MAX => return Step::More,
        _ => return refusal(),
    };
    let mut keeps_alive = request.version == Some(1);
    let mut body = 0;
    for header in request.headers.iter() {
        let value = str::from_utf8(header.value).unwrap_or("").trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            match value.parse::<usize>() {
                Ok(length) if length <= 1 << 20 => body = length,
                _ => return refusal(),
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return refusal();
        } else if header.name.eq_ignore_ascii_case("connection") {
            keeps_alive = !value.eq_ignore_ascii_case("close");
        }
    }
    let is_hello = request.method == Some("GET") && matches!(request.path, Some("/" | "/hello"));
    if buffer.len() < head + body {
        return Step::More;
    }
    buffer.drain(..head + body);
    let answer = match is_hello {
        true => answer("200 OK", HELLO, keeps_alive),
        false => answer("404 Not Found", "nothing here\n", keeps_alive),
    };
    Step::Answer(answer, keeps_alive)
}

/// The body of the answer.
pub const HELLO: &str = "Hello, world!\n";

fn refusal() -> Step {
    Step::Answer(answer("400 Bad Request", "", false), false)
}

fn answer(status: &str, body: &str, keeps_alive: bool) -> Vec<u8> {
    let connection = if keeps_alive { "keep-alive" } else { "close" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Type: text/plain\r\nConnection: {connection}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_one_by_one() {
        let mut buffer = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /no HTTP/1.1\r\n".to_vec();
        let Step::Answer(first, true) = step(&mut buffer) else {
            panic!("the first request is whole");
        };
        assert!(first.starts_with(b"HTTP/1.1 200 OK\r\n") && first.ends_with(HELLO.as_bytes()));
        assert!(matches!(step(&mut buffer), Step::More));
        buffer.extend(b"Connection: close\r\n\r\n");
        assert!(
            matches!(step(&mut buffer), Step::Answer(second, false) if second.starts_with(b"HTTP/1.1 404"))
        );
        assert!(buffer.is_empty());
    }
}
