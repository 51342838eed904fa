//! A request's way through an overlay.
//!
//! ```text
//! read   ─► runs ─► from top, from base ─► answered
//! change ─► all here? ─► top ─► answered
//!           else claim ─► bring up the blocks it changes in part ─► top ─► set bits, let go
//! flush  ─► take the map ─► copy what changed of it ─► flush top ─► write the copy ─► let go
//! ```
//!
//! A durable write goes on as a flush, unless the map on the medium has its blocks already.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use polylane_sys::buffer::Buffer;

use super::head::HeadChannel;
use super::{BLOCK_SECTORS, Overlay, page_sector};
use crate::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};
use crate::pieces::scatter;

/// Requests under way per channel.
const DEPTH: usize = 64;

/// Room for the number of a part in a tag, below the number of the task.
const PART_BITS: u32 = 32;

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its first step, or a claim.
    Start,
    /// Parts of a read.
    Read,
    /// The whole request, as it is.
    Whole,
    /// The base's content of blocks that are changed in part.
    Fetch,
    /// Those blocks, on their way to top.
    BringUp,
    /// The change itself.
    Change,
    /// The map, held by somebody else.
    Map,
    /// A flush of top.
    Flush,
    /// Pages of the map.
    Pages,
}

struct Task {
    request: Request,
    stage: Stage,
    /// Parts that are under way.
    parts: usize,
    error: Option<Error>,
    /// Absent blocks that it may write.
    claim: Option<Range<u64>>,
    /// Blocks that it brings up, and their content once it is there.
    edges: Vec<(u64, Option<Buffer>)>,
    /// Whether it has the map, and which pages it writes.
    has_map: bool,
    pages: Vec<(usize, Option<Buffer>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Road {
    Top,
    Base,
}

pub(super) struct OverlayChannel {
    device: Arc<Overlay>,
    top: Box<dyn Channel>,
    base: Box<dyn Channel>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    /// Parts that their road had no room for.
    backlog: VecDeque<(Road, Request)>,
    /// Parts under way on each road.
    on_top: usize,
    on_base: usize,
    /// Tasks that were refused a claim, and how many releases there had been.
    refused: Vec<usize>,
    released: u64,
    arrived: Vec<Completion>,
    finished: Vec<Completion>,
}

impl OverlayChannel {
    pub(super) fn new(device: Arc<Overlay>) -> OverlayChannel {
        let mut top = device.top.clone().channel();
        if device.layout.head > 0 {
            top = Box::new(HeadChannel::new(top, device.layout));
        }
        OverlayChannel {
            top,
            base: device.base.clone().channel(),
            device,
            tasks: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            backlog: VecDeque::new(),
            on_top: 0,
            on_base: 0,
            refused: Vec::new(),
            released: 0,
            arrived: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Sends a part of a task down a road.
    fn send(&mut self, road: Road, task: &mut Task, request: Request) {
        task.parts += 1;
        self.push(road, request);
    }

    fn push(&mut self, road: Road, request: Request) {
        let (channel, count) = match road {
            Road::Top => (&mut self.top, &mut self.on_top),
            Road::Base => (&mut self.base, &mut self.on_base),
        };
        match channel.submit(request) {
            Submitted::Done(completion) => self.arrived.push(completion),
            Submitted::Pending => *count += 1,
            Submitted::Busy(request) => self.backlog.push_back((road, request)),
        }
    }

    /// Takes a task without parts under way one step further: to the end, to new parts, or among
    /// the refused.
    fn advance(&mut self, index: usize, mut task: Task) {
        let tag = (index as u64) << PART_BITS;
        let result = match (task.error, task.stage) {
            (Some(error), _) => Some(Err(error)),
            (None, Stage::Start) => self.begin(tag, &mut task),
            (None, Stage::Read | Stage::Whole | Stage::Pages) => Some(Ok(())),
            (None, Stage::Fetch) => self.bring_up(tag, &mut task),
            (None, Stage::BringUp) => self.change(tag, &mut task),
            (None, Stage::Change) => self.changed(tag, &mut task),
            (None, Stage::Map) => self.flush(tag, &mut task),
            (None, Stage::Flush) => self.write_pages(tag, &mut task),
        };
        match result {
            Some(result) => self.end(index, task, result),
            None => {
                if task.parts == 0 {
                    self.refused.push(index);
                }
                self.tasks[index] = Some(task);
            }
        }
    }

    fn begin(&mut self, tag: u64, task: &mut Task) -> Option<Result<(), Error>> {
        let blocks = blocks(&task.request);
        match task.request.op {
            Op::Flush => return self.flush(tag, task),
            Op::Read => self.read(tag, task),
            op if self.device.present.has_all(blocks.clone()) => {
                if is_durable(op) && self.is_map_behind(&blocks) {
                    return self.change(tag, task);
                }
                self.whole(Road::Top, tag, task);
            }
            _ if !self.device.claims.take(&blocks) => {}
            _ => {
                task.claim = Some(blocks.clone());
                return self.fetch(tag, task, blocks);
            }
        }
        None
    }

    /// The request as it is, by one road.
    fn whole(&mut self, road: Road, tag: u64, task: &mut Task) {
        task.stage = Stage::Whole;
        let op = task.request.op;
        let request = moved(&mut task.request, op, tag);
        self.send(road, task, request);
    }

    /// A read: run by run, from where each is.
    fn read(&mut self, tag: u64, task: &mut Task) {
        let (start, end) = (task.request.sector.0, task.request.sector.0 + task.request.count);
        let all = blocks(&task.request);
        let road = |here| if here { Road::Top } else { Road::Base };
        let (first_end, here) = self.device.present.run(all.clone());
        if first_end == all.end {
            return self.whole(road(here), tag, task);
        }
        task.stage = Stage::Read;
        let mut at = start;
        while at < end {
            let (run_end, here) = self.device.present.run(at / BLOCK_SECTORS..all.end);
            let to = (run_end * BLOCK_SECTORS).min(end);
            let data = Buffer::zeroed((to - at) as usize * SECTOR_BYTES);
            // The part's number is where it belongs in the request, in sectors.
            let part = tag | (at - start);
            self.send(road(here), task, Request::with_data(Op::Read, Sector(at), vec![data], part));
            at = to;
        }
    }

    /// Gets the base's content of absent blocks that are changed in part.
    fn fetch(
        &mut self,
        tag: u64,
        task: &mut Task,
        blocks: Range<u64>,
    ) -> Option<Result<(), Error>> {
        let (start, end) = (task.request.sector.0, task.request.sector.0 + task.request.count);
        let mut ends = vec![blocks.start];
        ends.extend((blocks.end - 1 > blocks.start).then_some(blocks.end - 1));
        for block in ends {
            let (from, to) = self.sectors_of(block);
            let in_part = start > from || end < to;
            if in_part && !self.device.present.has(block) {
                let data = Buffer::zeroed((to - from) as usize * SECTOR_BYTES);
                let part = tag | task.edges.len() as u64;
                task.edges.push((block, None));
                let request = Request::with_data(Op::Read, Sector(from), vec![data], part);
                self.send(Road::Base, task, request);
            }
        }
        if task.edges.is_empty() {
            return self.change(tag, task);
        }
        task.stage = Stage::Fetch;
        None
    }

    fn bring_up(&mut self, tag: u64, task: &mut Task) -> Option<Result<(), Error>> {
        task.stage = Stage::BringUp;
        for at in 0..task.edges.len() {
            let (block, data) = &mut task.edges[at];
            let (sector, data) = (Sector(*block * BLOCK_SECTORS), data.take());
            let op = Op::Write { fua: false };
            let request = Request::with_data(op, sector, data.into_iter().collect(), tag);
            self.send(Road::Top, task, request);
        }
        None
    }

    /// The change itself. That it is durable comes later, with its bits.
    fn change(&mut self, tag: u64, task: &mut Task) -> Option<Result<(), Error>> {
        task.stage = Stage::Change;
        let op = match task.request.op {
            Op::Write { .. } => Op::Write { fua: false },
            Op::WriteZeroes { unmap, .. } => Op::WriteZeroes { unmap, fua: false },
            other => other,
        };
        let request = moved(&mut task.request, op, tag);
        self.send(Road::Top, task, request);
        None
    }

    fn changed(&mut self, tag: u64, task: &mut Task) -> Option<Result<(), Error>> {
        self.device.present.set(blocks(&task.request));
        self.let_go(task);
        if is_durable(task.request.op) { self.flush(tag, task) } else { Some(Ok(())) }
    }

    /// Whether the map on the medium may not know yet that these blocks, which are here, are: then
    /// data in them is only as durable as the next flush of the map. In this order: whoever took
    /// the map takes the changed pages after, and lets go when they are durable.
    fn is_map_behind(&self, blocks: &Range<u64>) -> bool {
        self.device.present.is_changed(blocks) || self.device.claims.has_map()
    }

    /// Flushes top, with a copy in hand of the map as it is now.
    fn flush(&mut self, tag: u64, task: &mut Task) -> Option<Result<(), Error>> {
        if !self.device.claims.take_map() {
            task.stage = Stage::Map;
            return None;
        }
        task.has_map = true;
        let changed = self.device.present.take_changed().into_iter();
        task.pages = changed.map(|(page, data)| (page, Some(data))).collect();
        task.stage = Stage::Flush;
        self.send(Road::Top, task, Request::without_data(Op::Flush, Sector(0), 0, tag));
        None
    }

    fn write_pages(&mut self, tag: u64, task: &mut Task) -> Option<Result<(), Error>> {
        task.stage = Stage::Pages;
        for at in 0..task.pages.len() {
            let (page, data) = &mut task.pages[at];
            let sector = Sector(self.device.layout.map_start + page_sector(*page));
            let data = data.take().into_iter().collect();
            let request = Request::with_data(Op::Write { fua: true }, sector, data, tag);
            self.send(Road::Top, task, request);
        }
        task.pages.is_empty().then_some(Ok(()))
    }

    fn let_go(&self, task: &mut Task) {
        if let Some(blocks) = task.claim.take() {
            self.device.claims.release(&blocks);
        }
        if std::mem::take(&mut task.has_map) {
            self.device.claims.release_map();
        }
    }

    fn end(&mut self, index: usize, mut task: Task, result: Result<(), Error>) {
        if result.is_err() {
            // They are on the medium or not: to be written again.
            task.pages.iter().for_each(|(page, _)| self.device.present.touch(*page));
        }
        self.let_go(&mut task);
        self.free.push(index);
        self.finished.push(task.request.complete(result));
    }

    /// Takes a part in that came back.
    fn arrive(&mut self, completion: Completion) {
        let index = (completion.tag >> PART_BITS) as usize;
        let part = (completion.tag & ((1 << PART_BITS) - 1)) as usize;
        let Some(mut task) = self.tasks.get_mut(index).and_then(Option::take) else { return };
        task.parts -= 1;
        if let Err(error) = completion.result {
            task.error.get_or_insert(error);
        }
        let mut data = completion.data;
        match task.stage {
            Stage::Whole | Stage::Change => task.request.data = data,
            Stage::Read => {
                let bytes = data.first().map_or(&[][..], |buffer| buffer);
                scatter(&mut task.request.data, part * SECTOR_BYTES, bytes);
            }
            Stage::Fetch => task.edges[part].1 = data.pop(),
            _ => {}
        }
        match task.parts {
            0 => self.advance(index, task),
            _ => self.tasks[index] = Some(task),
        }
    }

    /// The sectors of a block; the last one of the device may be cut.
    fn sectors_of(&self, block: u64) -> (u64, u64) {
        let start = block * BLOCK_SECTORS;
        (start, (start + BLOCK_SECTORS).min(self.device.layout.size))
    }
}

impl Channel for OverlayChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let Some(index) = self.free.pop() else { return Submitted::Busy(request) };
        let check = match request.validate(self.device.layout.size) {
            Ok(()) if request.is_change() && self.device.read_only() => Err(Error::ReadOnly),
            other => other,
        };
        if let Err(error) = check {
            self.free.push(index);
            return Submitted::Done(request.complete(Err(error)));
        }
        let task = Task {
            request,
            stage: Stage::Start,
            parts: 0,
            error: None,
            claim: None,
            edges: Vec::new(),
            has_map: false,
            pages: Vec::new(),
        };
        self.advance(index, task);
        Submitted::Pending
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        for _ in 0..self.backlog.len() {
            let Some((road, request)) = self.backlog.pop_front() else { break };
            self.push(road, request);
        }
        let before = self.arrived.len();
        self.base.poll(&mut self.arrived);
        self.on_base -= self.arrived.len() - before;
        let before = self.arrived.len();
        self.top.poll(&mut self.arrived);
        self.on_top -= self.arrived.len() - before;
        self.released = self.device.claims.released();
        for index in std::mem::take(&mut self.refused) {
            if let Some(task) = self.tasks[index].take() {
                self.advance(index, task);
            }
        }
        while let Some(completion) = self.arrived.pop() {
            self.arrive(completion);
        }
        done.append(&mut self.finished);
    }

    fn park(&mut self) {
        if !self.finished.is_empty() || !self.arrived.is_empty() {
            return;
        }
        match (self.on_top, self.on_base, self.refused.is_empty()) {
            (1.., _, _) => self.top.park(),
            (0, 1.., _) => self.base.park(),
            (0, 0, false) => self.device.claims.wait(self.released),
            (0, 0, true) => {}
        }
    }
}

/// The request's op and buffers in a request of our own, for one road.
fn moved(request: &mut Request, op: Op, tag: u64) -> Request {
    match op {
        Op::Read | Op::Write { .. } => {
            Request::with_data(op, request.sector, std::mem::take(&mut request.data), tag)
        }
        _ => Request::without_data(op, request.sector, request.count, tag),
    }
}

fn is_durable(op: Op) -> bool {
    matches!(op, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. })
}

/// The blocks that a request touches.
fn blocks(request: &Request) -> Range<u64> {
    let end = request.sector.0 + request.count;
    request.sector.0 / BLOCK_SECTORS..end.div_ceil(BLOCK_SECTORS)
}
