//! Rings made ahead, by a process that makes no more. A process of its own: it is for good.

use std::os::fd::AsFd;

use polylane_sys::buffer::Buffer;
use polylane_sys::uring::{Action, Operation, Ring, reserve};

fn write(ring: &mut Ring, offset: u64) -> polylane_base::Result<usize> {
    let buffers = vec![Buffer::copy_of(&[7; 512])];
    let action = Action::Write { durable: false };
    let operation = Operation { file: 0, action, offset, buffers, skip: 0, token: 0 };
    assert!(ring.push(operation).is_ok(), "room");
    loop {
        ring.wait();
        if let Some(finished) = ring.reap() {
            return finished.result;
        }
    }
}

#[test]
fn reserved_rings_are_used_again_with_other_files_and_no_more_are_made() {
    let (one, other) = (tempfile::tempfile().expect("file"), tempfile::tempfile().expect("file"));
    let Ok(ring) = Ring::new(4, &[one.as_fd()]) else {
        return println!("skipped: no io_uring here");
    };
    drop(ring);
    reserve(2, 4);
    for round in 0..3 {
        let mut first = Ring::new(4, &[one.as_fd()]).expect("one of two");
        let event = polylane_sys::event::eventfd().expect("event");
        first.watch(&[event.as_fd()]).expect("watched");
        polylane_sys::event::notify(&event);
        assert!(first.rest());
        let mut second = Ring::new(4, &[other.as_fd()]).expect("the other");
        assert!(Ring::new(4, &[one.as_fd()]).is_err(), "there are two");
        assert_eq!(write(&mut first, round * 512), Ok(512));
        assert_eq!(write(&mut second, round * 1024), Ok(512));
    }
    assert_eq!(one.metadata().expect("stat").len(), 3 * 512);
    assert_eq!(other.metadata().expect("stat").len(), 2 * 1024 + 512);
    reserve(0, 4);
    assert!(Ring::new(4, &[one.as_fd()]).is_err(), "none");
}
