//! The own file of an overlay in which the device's first blocks do not lie at their own place.
//!
//! A file system or partition table is recognized by the first blocks of a disk. An overlay's file
//! holds only the blocks that were written since the copy, so no tool may take it for a disk: its
//! first blocks lie behind the map, and a label is at their place (see [`Layout`]).
//!
//! A request that lies partly in the head is cut into two, each with buffers of its own; all other
//! requests go on as they are.

use std::collections::VecDeque;

use polylane_sys::buffer::Buffer;

use super::Layout;
use crate::device::{Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted};
use crate::pieces::scatter;

/// Marks the tag of a part; the overlay's own tags are below it.
const PART: u64 = 1 << 63;

/// Slots of requests that are cut, one for each request that an overlay has under way.
const SLOTS: usize = 64;

/// A request that was cut.
struct Cut {
    request: Request,
    parts: u32,
    error: Option<Error>,
}

/// A channel to the own file, addressed as the device is.
pub(super) struct HeadChannel {
    file: Box<dyn Channel>,
    layout: Layout,
    cuts: Vec<Option<Cut>>,
    /// Parts that the file's channel had no room for.
    backlog: VecDeque<Request>,
    arrived: Vec<Completion>,
}

impl HeadChannel {
    pub(super) fn new(file: Box<dyn Channel>, layout: Layout) -> HeadChannel {
        let cuts = (0..SLOTS).map(|_| None).collect();
        HeadChannel { file, layout, cuts, backlog: VecDeque::new(), arrived: Vec::new() }
    }

    fn cut(&mut self, request: Request) -> Submitted {
        let Some(slot) = self.cuts.iter().position(Option::is_none) else {
            return Submitted::Busy(request);
        };
        let (start, end) = (request.sector.0, request.sector.0 + request.count);
        let mut bytes = Vec::new();
        if matches!(request.op, Op::Write { .. }) {
            bytes = request.data.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        }
        let middle = self.layout.head;
        for (half, (from, to)) in [(start, middle), (middle, end)].into_iter().enumerate() {
            let tag = PART | (slot as u64) << 1 | half as u64;
            let (sector, count) = (self.layout.place(Sector(from)), to - from);
            let part = match request.op {
                Op::Read => {
                    let data = Buffer::zeroed(count as usize * SECTOR_BYTES);
                    Request::with_data(Op::Read, sector, vec![data], tag)
                }
                Op::Write { .. } => {
                    let first = (from - start) as usize * SECTOR_BYTES;
                    let data = &bytes[first..first + count as usize * SECTOR_BYTES];
                    Request::with_data(request.op, sector, vec![Buffer::copy_of(data)], tag)
                }
                op => Request::without_data(op, sector, count, tag),
            };
            self.backlog.push_back(part);
        }
        self.cuts[slot] = Some(Cut { request, parts: 2, error: None });
        self.send_on();
        Submitted::Pending
    }

    /// Sends parts that wait, as far as the file's channel has room.
    fn send_on(&mut self) {
        while let Some(part) = self.backlog.pop_front() {
            match self.file.submit(part) {
                Submitted::Done(completion) => self.arrived.push(completion),
                Submitted::Pending => {}
                Submitted::Busy(part) => {
                    self.backlog.push_front(part);
                    return;
                }
            }
        }
    }

    fn arrive(&mut self, completion: Completion, done: &mut Vec<Completion>) {
        if completion.tag & PART == 0 {
            done.push(completion);
            return;
        }
        let (slot, half) = ((completion.tag & !PART) as usize >> 1, completion.tag & 1);
        let Some(cut) = self.cuts.get_mut(slot).and_then(Option::as_mut) else { return };
        cut.parts -= 1;
        if let Err(error) = completion.result {
            cut.error.get_or_insert(error);
        }
        if cut.request.op == Op::Read {
            let second = (self.layout.head - cut.request.sector.0) as usize * SECTOR_BYTES;
            let at = if half == 0 { 0 } else { second };
            for buffer in &completion.data {
                scatter(&mut cut.request.data, at, buffer);
            }
        }
        if cut.parts == 0
            && let Some(Cut { request, error, .. }) = self.cuts[slot].take()
        {
            done.push(request.complete(error.map_or(Ok(()), Err)));
        }
    }
}

impl Channel for HeadChannel {
    fn submit(&mut self, mut request: Request) -> Submitted {
        let (start, end) = (request.sector.0, request.sector.0 + request.count);
        if request.op == Op::Flush || start >= self.layout.head {
            return self.file.submit(request);
        }
        if end > self.layout.head {
            return self.cut(request);
        }
        request.sector = self.layout.place(request.sector);
        match self.file.submit(request) {
            Submitted::Busy(mut request) => {
                request.sector = Sector(start);
                Submitted::Busy(request)
            }
            other => other,
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.send_on();
        let mut arrived = std::mem::take(&mut self.arrived);
        self.file.poll(&mut arrived);
        for completion in arrived {
            self.arrive(completion, done);
        }
    }

    fn park(&mut self) {
        if self.arrived.is_empty() {
            self.file.park();
        }
    }
}
