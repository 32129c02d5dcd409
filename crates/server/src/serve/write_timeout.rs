//! A stream whose writes time out (SEC-2).
//!
//! A client that sends a request and never reads the answer would hold the answer's memory, its place and its file
//! descriptor. So a write that makes no progress for some time is an error, which ends the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Fails a write that makes no progress for `max`.
pub(super) struct WriteTimeout<S> {
    stream: S,
    max: Duration,
    standing: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(stream: S, max: Duration) -> WriteTimeout<S> {
        WriteTimeout { stream, max, standing: None }
    }

    fn unless_it_stands<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.standing = None;
            return written;
        }
        let standing = self.standing.get_or_insert_with(|| Box::pin(sleep(self.max)));
        standing.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.unless_it_stands(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.unless_it_stands(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.unless_it_stands(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.unless_it_stands(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// SEC-2.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_stands_still_is_given_up_and_one_that_crawls_is_not() {
        let second = Duration::from_secs(1);
        let (near, mut far) = duplex(16);
        let mut near = WriteTimeout::new(near, second);
        let reads = async {
            let mut buffer = [0; 4];
            for _ in 0..25 {
                sleep(second * 9 / 10).await;
                far.read_exact(&mut buffer).await.expect("it is written");
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[0; 100]), reads);
        written.expect("it went on all the time");
        let error = near.write_all(&[0; 100]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
