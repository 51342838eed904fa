//! HTTP on a UNIX socket, with its limits.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::caller::Caller;
use crate::listen::Listener;
use crate::pipe::Pipe;
use crate::places::{Limits, Places};
use crate::refusal::Refusal;
use crate::routes::{Answer, Daemon, answer};

/// Most bytes of a request's body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest time in which a head, and then a body, comes.
const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest time in which an answer is read, and a line of events.
const WRITE_TIME_MAX: Duration = Duration::from_secs(5);
/// Most connections at a time, by who calls. One more is refused.
const CONNECTIONS_MAX: Limits = Limits { of_a_kind: 64, each: 16 };
/// What a connection that is one too many is answered.
const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 69\r\n\r\n\
    {\"error\":{\"code\":\"busy\",\"message\":\"too many connections: try again\"}}";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What all connections share.
#[derive(Clone)]
struct Shared {
    daemon: Daemon,
    /// The same, where others than the daemon's user look.
    daemon_of_others: Daemon,
    group: Option<u32>,
    places: Places,
}

/// Accepts connections, until the listener fails for good.
pub(crate) async fn accept(
    listener: &Listener,
    daemon: Daemon,
    group: Option<u32>,
) -> Result<Infallible, io::Error> {
    let listener = listener.to_async()?;
    let of_others = Daemon { program: daemon.program.apart(), ..daemon.clone() };
    let places = Places::new(CONNECTIONS_MAX);
    let shared = Shared { daemon, daemon_of_others: of_others, group, places };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, shared.clone()));
            }
            // A lack of descriptors passes.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves one connection to its end.
async fn converse(mut stream: UnixStream, shared: Shared) {
    let caller = Caller::of(&stream, shared.group);
    let Some(_place) = shared.places.take(caller) else {
        // What the peer does not read of so short an answer waits in the socket.
        let _ = tokio::time::timeout(READ_TIME_MAX, stream.write_all(TOO_MANY.as_bytes())).await;
        return;
    };
    let daemon = match caller {
        Caller::Owner => shared.daemon,
        Caller::Member(_) | Caller::Stranger(_) => shared.daemon_of_others,
    };
    let service = service_fn(move |request| {
        let daemon = daemon.clone();
        async move {
            Ok::<_, Infallible>(match respond(&daemon, request, caller).await {
                Ok(answer) => response(answer),
                Err(refusal) => whole(refusal.status, refusal.body()),
            })
        }
    });
    // An error ends this connection alone: its peer broke it or the protocol.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Pipe::new(stream, WRITE_TIME_MAX)), service)
        .await;
}

async fn respond(
    daemon: &Daemon,
    request: Request<Incoming>,
    caller: Caller,
) -> Result<Answer, Refusal> {
    caller.must_be_served()?;
    let (head, body) = request.into_parts();
    let too_large = || {
        let message = format!("a body has at most {BODY_BYTES_MAX} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message)
    };
    // What is said to be too large is not waited for.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let body = Limited::new(body, BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(READ_TIME_MAX, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => return Err(Refusal::malformed(&error)),
        Err(_) => {
            let message = format!("the body did not come within {} s", READ_TIME_MAX.as_secs());
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "too-slow", message));
        }
    };
    answer(daemon, caller, (&head.method, head.uri.path()), &body).await
}

fn response(answer: Answer) -> Response<Body> {
    match answer {
        Answer::Whole(status, value) => whole(status, value),
        Answer::Stream(stream) => {
            let mut response = Response::new(stream.boxed_unsync());
            let kind = HeaderValue::from_static("application/x-ndjson");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
    }
}

fn whole(status: StatusCode, value: serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let task = value["id"].as_u64().filter(|_| status == StatusCode::ACCEPTED);
    let location = task.and_then(|id| HeaderValue::from_str(&format!("/v1/tasks/{id}")).ok());
    headers.extend(location.map(|location| (LOCATION, location)));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_connection_too_many_has_the_length_that_it_says() {
        let (head, body) = TOO_MANY.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).expect("JSON");
    }
}
