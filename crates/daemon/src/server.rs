//! HTTP on a UNIX socket, with its limits.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use polylane_base::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::DaemonError;
use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::routes::{Answer, Daemon, answer};

/// Most bytes of a request's body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest time in which a head, and then a body, comes.
const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// Most connections of the daemon's user at a time, and as many of all others together. One more
/// is refused.
const CONNECTIONS_MAX: usize = 64;
/// What a connection that is one too many is answered.
const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 69\r\n\r\n\
    {\"error\":{\"code\":\"busy\",\"message\":\"too many connections: try again\"}}";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Makes a socket for the daemon's user and the group. One that no daemon listens on any more is
/// replaced.
///
/// # Errors
/// Another daemon listens there, or the path cannot be used.
pub(crate) fn listen(path: &Path, group: Option<u32>) -> Result<StdListener, DaemonError> {
    let failed = |error: io::Error| DaemonError::new(path.display(), error);
    if let Some(dir) = path.parent() {
        // As the run-time directory is: others may look up names that they know.
        fs::DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(failed)?;
    }
    match StdStream::connect(path) {
        Ok(_) => return Err(DaemonError::new(path.display(), "another daemon listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
            fs::remove_file(path).map_err(failed)?;
        }
        Err(_) => {}
    }
    let listener = StdListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    if group.is_some() {
        std::os::unix::fs::chown(path, None, group).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
    }
    Ok(listener)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// What all connections share.
#[derive(Clone)]
struct Shared {
    daemon: Daemon,
    group: Option<u32>,
    places: Arc<Semaphore>,
    places_of_others: Arc<Semaphore>,
}

/// Accepts connections, until the listener fails for good.
pub(crate) async fn accept(
    listener: StdListener,
    daemon: Daemon,
    group: Option<u32>,
) -> Result<Infallible, io::Error> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let places = || Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let shared = Shared { daemon, group, places: places(), places_of_others: places() };
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
    let places = match caller {
        Ok(Caller::Owner) => &shared.places,
        _ => &shared.places_of_others,
    };
    let Ok(_place) = Arc::clone(places).try_acquire_owned() else {
        // What the peer does not read of so short an answer waits in the socket.
        let _ = tokio::time::timeout(READ_TIME_MAX, stream.write_all(TOO_MANY.as_bytes())).await;
        return;
    };
    let daemon = shared.daemon;
    let service = service_fn(move |request| {
        let (daemon, caller) = (daemon.clone(), caller.clone());
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
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(
    daemon: &Daemon,
    request: Request<Incoming>,
    caller: Result<Caller, Refusal>,
) -> Result<Answer, Refusal> {
    let caller = caller?;
    let (head, body) = request.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(READ_TIME_MAX, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("a body has at most {BODY_BYTES_MAX} bytes");
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message));
        }
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

    #[test]
    fn a_socket_that_is_left_is_replaced_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("below/daemon.sock");
        let first = listen(&path, None).expect("made");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(listen(&path, None).expect_err("in use").to_string().contains("another daemon"));
        drop(first);
        listen(&path, None).expect("made again");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "a file").expect("written");
        listen(&path, None).expect_err("not a socket");
        assert_eq!(fs::read_to_string(&path).expect("kept"), "a file");
    }
}
