//! The session's thread: one frontend after the other, its messages one after the other.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use polylane_base::sync::{Arc, thread};
use polylane_sys::event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use vhost::vhost_user::BackendReqHandler;
use zerocopy::native_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

use super::Shared;
use super::locked::Locked;

/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_CHANNEL: u32 = 21;

polylane_base::record! {
    /// What each message of the protocol begins with; `size` bytes follow.
    struct MessageHeader: 12 {
        0x00 request: U32,
        0x04 flags: U32,
        0x08 size: U32,
    }
}

/// A frontend that says nothing for so long has started what it wanted to. Before that, QEMU would
/// not heed a message of ours.
const SILENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long a message may take to arrive in whole, and an answer to be taken.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(10);

/// Serves until it is told to stop.
pub(super) fn run(listener: &UnixListener, shared: &Arc<Shared>) {
    while !shared.stop.is_rung() {
        let (stop, door) = (shared.stop.as_fd(), listener.as_fd());
        let watched = [door, stop].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if poll(&mut { watched }, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => serve(&stream, listener, shared),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Out of descriptors, a peer that left at once: others may fare better.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Serves one frontend until it leaves, says something wrong, or all is to stop. One that has said
/// nothing at all gives way to the next one at the `listener`.
fn serve(stream: &UnixStream, listener: &UnixListener, shared: &Arc<Shared>) {
    let (Ok(own), Ok(other)) = (stream.try_clone(), stream.try_clone()) else { return };
    let limits = [
        stream.set_nonblocking(false),
        stream.set_read_timeout(Some(MESSAGE_TIME_MAX)),
        stream.set_write_timeout(Some(MESSAGE_TIME_MAX)),
    ];
    if limits.iter().any(Result::is_err) {
        return;
    }
    let mut heard = false;
    *shared.connected.lock() = Some(other);
    let handler = Locked::new(shared.export.clone());
    let mut messages = BackendReqHandler::from_stream(own, handler.clone());
    while !shared.stop.is_rung() {
        let (line, stop, grown) = (stream.as_fd(), shared.stop.as_fd(), shared.grown.as_fd());
        let next = if heard { stop } else { listener.as_fd() };
        let mut watched =
            [line, stop, grown, next].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let silence = handler.lock().is_behind().then_some(&SILENCE);
        match poll(&mut watched, silence) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
            Ok(0) => handler.lock().catch_up(),
            Ok(_) => {}
        }
        let [line, _, grown, next] = watched.map(|fd| !fd.revents().is_empty());
        if grown {
            event::drain(&shared.grown);
            handler.lock().tell_config_change();
        }
        if line {
            take_channel(stream, &handler);
            if messages.handle_request().is_err() {
                break;
            }
            heard = true;
        } else if next && !heard {
            break;
        }
    }
    *shared.connected.lock() = None;
    handler.lock().stop();
}

/// Takes a copy of the line for messages of ours out of the message that brings it: the crate
/// keeps the line to itself and has no message for a changed configuration. What is only looked at
/// is received again, its descriptors too.
fn take_channel(stream: &UnixStream, handler: &Locked) {
    let mut header = MessageHeader::new_zeroed();
    let seen = recv(stream, header.as_mut_bytes(), RecvFlags::PEEK);
    let is_whole = seen.is_ok_and(|(_, count)| count == size_of::<MessageHeader>());
    if !is_whole || header.request != SET_CHANNEL {
        return;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let mut data = [IoSliceMut::new(header.as_mut_bytes())];
    if recvmsg(stream, &mut data, &mut control, flags).is_err() {
        return;
    }
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    if let Some(channel) = rights.flatten().next() {
        let channel: OwnedFd = channel;
        handler.lock().set_channel(channel);
    }
}
