//! Events as a stream: one JSON object a line, for each that listens.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::{Body, Bytes, Frame};
use polylane_base::sync::{Arc, Mutex};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Most lines that wait for one listener: a slower one is cut off.
const LINES_MAX: usize = 256;

/// All listeners.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<mpsc::Sender<Bytes>>>>);

impl Events {
    /// Tells all listeners of an event, with the time, in seconds since 1970.
    pub(crate) fn tell(&self, event: &Value) {
        let mut listeners = self.0.lock();
        if listeners.is_empty() {
            return;
        }
        let mut event = event.clone();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        event["time"] = json!(now.as_secs_f64());
        let line = Bytes::from(format!("{event}\n"));
        listeners.retain(|listener| listener.try_send(line.clone()).is_ok());
    }

    /// One more listener.
    pub(crate) fn listen(&self) -> Stream {
        let (sender, receiver) = mpsc::channel(LINES_MAX);
        let mut listeners = self.0.lock();
        listeners.retain(|listener| !listener.is_closed());
        listeners.push(sender);
        Stream(receiver)
    }

    /// Whether anyone listens.
    pub(crate) fn has_listeners(&self) -> bool {
        let mut listeners = self.0.lock();
        listeners.retain(|listener| !listener.is_closed());
        !listeners.is_empty()
    }
}

/// What one listener is sent: the body of an answer without an end.
pub(crate) struct Stream(mpsc::Receiver<Bytes>);

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_is_told_and_a_slow_one_is_cut_off() {
        let events = Events::default();
        events.tell(&json!({ "event": "unheard" }));
        assert!(!events.has_listeners());
        let (mut quick, mut slow) = (events.listen(), events.listen());
        for number in 0..LINES_MAX + 10 {
            events.tell(&json!({ "event": number }));
            let line = quick.0.try_recv().expect("told");
            let event: Value = serde_json::from_slice(&line).expect("JSON");
            assert!(event["event"] == number && event["time"].as_f64() > Some(1e9));
        }
        let heard = std::iter::from_fn(|| slow.0.try_recv().ok()).count();
        assert_eq!(heard, LINES_MAX);
        assert_eq!(slow.0.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        drop(quick);
        assert!(!events.has_listeners());
    }
}
