//! A client of HTTP on a UNIX socket that says exactly what it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its head, in lower case.
    pub head: String,
    /// Its body; null where it is empty.
    pub body: serde_json::Value,
}

/// Sends a request with a body on a connection of its own, and reads its answer.
///
/// # Panics
/// There is no answer, or none of HTTP with JSON.
pub fn request(socket: &Path, method: &str, path: &str, body: &str) -> Answer {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: polylane\r\nConnection: close\r\n");
    raw(socket, format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes())
        .unwrap_or_else(|| panic!("{method} {path}: no answer"))
}

/// The same of a server that may not be there, or end at any moment; `None`: no whole answer.
pub fn try_request(socket: &Path, method: &str, path: &str, body: &str) -> Option<Answer> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: polylane\r\nConnection: close\r\n");
    let text = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = if body.is_empty() { "null" } else { body };
    Some(Answer { status, head: head.to_lowercase(), body: serde_json::from_str(body).ok()? })
}

/// Sends bytes and reads an answer; `None`: the connection was ended without one.
pub fn raw(socket: &Path, bytes: &[u8]) -> Option<Answer> {
    let mut stream = connect(socket);
    // One that is refused early may not be read whole.
    let _ = stream.write_all(bytes);
    read(&mut BufReader::new(stream))
}

/// A connection whose reads end after a while.
///
/// # Panics
/// There is no server.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("a server");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    stream
}

/// Reads an answer that says its length; `None`: there is none.
///
/// # Panics
/// It is none of HTTP with JSON.
pub fn read(stream: &mut BufReader<UnixStream>) -> Option<Answer> {
    let head = head(stream)?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a length"))];
    stream.read_exact(&mut body).expect("a body");
    let body = match body.is_empty() {
        true => serde_json::Value::Null,
        false => serde_json::from_slice(&body).expect("JSON"),
    };
    Some(Answer { status, head, body })
}

/// Reads the head of an answer, in lower case; `None`: the connection ended.
pub fn head(stream: &mut BufReader<UnixStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).unwrap_or(0) == 0 {
            return None;
        }
    }
    Some(head.to_lowercase())
}
