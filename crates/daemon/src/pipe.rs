//! A connection on which nothing may wait for longer than a while to be read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Sleep;

/// A stream whose writes fail once what was written has waited for its reader for too long,
/// however often the reader takes a little.
#[derive(Debug)]
pub(crate) struct Pipe {
    stream: UnixStream,
    limit: Duration,
    /// Runs from the first write that had to wait until all is written.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Pipe {
    pub(crate) fn new(stream: UnixStream, limit: Duration) -> Pipe {
        Pipe { stream, limit, waiting: None }
    }

    /// What came of a write: an error where it waits and the time is over.
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let limit = self.limit;
        if let Some(waiting) = &mut self.waiting
            && waiting.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if outcome.is_pending() && self.waiting.is_none() {
            let mut waiting = Box::pin(tokio::time::sleep(limit));
            // To be woken at its end.
            let _ = waiting.as_mut().poll(context);
            self.waiting = Some(waiting);
        }
        outcome
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limited(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.limited(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called once all is written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);
    const BYTES: usize = 4 << 20;

    fn in_runtime<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test)
    }

    /// Writes [`BYTES`] to a reader that takes as many at a time, and then pauses.
    async fn written(at_a_time: usize, pause: Duration) -> io::Result<()> {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut pipe = Pipe::new(near, LIMIT);
        let reader = tokio::spawn(async move {
            let mut bytes = vec![0; at_a_time];
            while far.read(&mut bytes).await.is_ok_and(|count| count > 0) {
                tokio::time::sleep(pause).await;
            }
        });
        let outcome = match pipe.write_all(&vec![7; BYTES]).await {
            Ok(()) => pipe.flush().await,
            failed => failed,
        };
        reader.abort();
        outcome
    }

    #[test]
    fn a_reader_that_takes_a_byte_now_and_then_does_not_keep_the_connection() {
        let pause = Duration::from_millis(10);
        let slow = in_runtime(written(1, pause)).expect_err("slow");
        assert_eq!(slow.kind(), io::ErrorKind::TimedOut);
        let absent = in_runtime(written(1, Duration::from_secs(3600))).expect_err("absent");
        assert_eq!(absent.kind(), io::ErrorKind::TimedOut);
        in_runtime(written(BYTES, Duration::ZERO)).expect("quick");
    }

    /// The time is over for each answer anew.
    #[test]
    fn answers_that_are_read_in_time_may_go_on_for_ever() {
        in_runtime(async {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut pipe = Pipe::new(near, LIMIT);
            let reader = tokio::spawn(async move {
                let mut bytes = vec![0; BYTES];
                while far.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
            });
            for _ in 0..4 {
                pipe.write_all(&vec![7; BYTES]).await.expect("written");
                pipe.flush().await.expect("flushed");
                tokio::time::sleep(LIMIT / 2).await;
            }
            reader.abort();
        });
    }
}
