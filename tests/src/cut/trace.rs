//! What strace(1) says, as events.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::{Content, Event, Fate, Inode, Name, State, UNIT};

/// System calls that change files or names, or say which descriptor is which file.
pub(super) const CALLS: &str = "trace=?open,openat,?creat,fcntl,dup,?dup2,dup3,?link,linkat,\
    ?rename,?renameat,renameat2,?unlink,unlinkat,write,writev,pwrite64,pwritev,pwritev2,truncate,\
    ftruncate,fallocate,fsync,fdatasync,ioctl,lseek,copy_file_range,sendfile,io_uring_setup,swapon";

/// Nobody is given a ring, whose writes would not be seen: they become calls. (In place of the call
/// stands one that every process may make.)
pub(super) const NO_RINGS: &str = "inject=io_uring_setup:error=ENOSYS:syscall=getpid";

/// Pool files of bypass volumes are said to be pinned, and found not to be: so what goes to them
/// goes through them, in the order in which it would go past them, and is seen.
pub(super) const NO_PINS: &str = "inject=swapon:error=EBUSY";

/// A system call that has returned.
struct Line {
    process: String,
    text: String,
    /// How many others had returned when it began.
    begun: usize,
}

/// Lines of strace with their processes; those that another process interrupted are put together.
fn whole_lines(text: &str) -> Vec<Line> {
    let (mut begun, mut lines) = (HashMap::new(), Vec::<Line>::new());
    for line in text.lines() {
        let (process, line) = line.split_once(' ').expect("a process");
        let line = line.trim_start();
        if let Some(start) = line.strip_suffix(" <unfinished ...>") {
            begun.insert(process, (start.to_string(), lines.len()));
        } else if let Some(rest) = line.strip_prefix("<... ") {
            let rest = rest.split_once(" resumed>").expect("resumed").1;
            let (start, begun) = begun.remove(process).unwrap_or_default();
            lines.push(Line { process: process.to_string(), text: start + rest, begun });
        } else {
            let (text, begun) = (line.to_string(), lines.len());
            lines.push(Line { process: process.to_string(), text, begun });
        }
    }
    lines
}

/// Makes events of system calls.
pub(super) struct Reader {
    dir: PathBuf,
    /// Files as they were before, and as they are made.
    pub(super) first: Vec<Content>,
    /// What names stood for before.
    pub(super) first_names: BTreeMap<Name, Inode>,
    /// Files as they are now.
    pub(super) live: Vec<Content>,
    /// What names stand for now.
    pub(super) names: BTreeMap<Name, Inode>,
    /// Files without a name, by what the kernel calls them.
    nameless: HashMap<String, Inode>,
    /// Which file a descriptor of a process is.
    open: HashMap<(String, String), Inode>,
    /// Where plain writes go on, by process and descriptor.
    position: HashMap<(String, String), u64>,
    /// What was done.
    pub(super) events: Vec<Event>,
    /// How much had been done when each `mark-…` beside the directory was made.
    pub(super) marks: Vec<usize>,
    /// How much had been done when the call began that is looked at.
    begun: usize,
}

/// Strings of a call's arguments: `\x2f` and so on.
fn unescape(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("hex") as u8;
    let bytes = text.trim_matches('"').as_bytes();
    bytes.chunks_exact(4).map(|byte| digit(byte[2]) << 4 | digit(byte[3])).collect()
}

fn text_of(argument: &str) -> String {
    String::from_utf8(unescape(argument)).expect("UTF-8")
}

fn number(argument: &str) -> u64 {
    let digits = argument.trim();
    let parsed = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("no number: {argument}"))
}

/// Splits arguments at the commas between them.
fn split(arguments: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, letter) in arguments.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(arguments[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(arguments[start..].trim());
    found
}

/// A descriptor and what it is open on: `5</a/b>` or `5</a/#7>(deleted)`.
fn descriptor(argument: &str) -> Option<(String, String)> {
    let (fd, rest) = argument.split_once('<')?;
    let path = rest.split_once('>')?.0;
    Some((fd.to_string(), if path.contains("\\x") { text_of(path) } else { path.to_string() }))
}

impl Reader {
    /// Of what a command does to files in `dir`, which holds `before`.
    pub(super) fn new(dir: &Path, before: &State) -> Reader {
        let first: Vec<Content> = before.files.values().cloned().collect();
        let first_names: BTreeMap<_, _> = before.files.keys().cloned().zip(0..).collect();
        Reader {
            dir: dir.to_path_buf(),
            live: first.clone(),
            names: first_names.clone(),
            first,
            first_names,
            nameless: HashMap::new(),
            open: HashMap::new(),
            position: HashMap::new(),
            events: Vec::new(),
            marks: Vec::new(),
            begun: 0,
        }
    }

    /// Takes in what strace said.
    pub(super) fn read(&mut self, text: &str) {
        let mut done = vec![0];
        for line in whole_lines(text) {
            self.begun = done[line.begun];
            self.take(&line.process, &line.text);
            done.push(self.events.len());
        }
    }

    fn push(&mut self, event: Event) {
        event.apply(&mut self.live, &mut self.names, Fate::Kept);
        if !self.joins(&event) {
            self.events.push(event);
        }
    }

    /// Whether an event is a write to the page of the file that the last one wrote to: the host
    /// writes pages, so it becomes part of that.
    fn joins(&mut self, event: &Event) -> bool {
        let page = |at: u64, bytes: &[u8]| {
            let (first, end) = (at / UNIT as u64, (at + bytes.len() as u64).div_ceil(UNIT as u64));
            (end <= first + 1).then_some(first)
        };
        let (Some(Event::Write(last, at, bytes)), Event::Write(inode, start, more)) =
            (self.events.last_mut(), event)
        else {
            return false;
        };
        if last != inode || page(*at, bytes).is_none() || page(*at, bytes) != page(*start, more) {
            return false;
        }
        let end = (*at + bytes.len() as u64).max(start + more.len() as u64);
        *at = (*at).min(*start);
        *bytes = self.live[*inode].read(*at, end - *at);
        true
    }

    /// The name in the directory, if the path is one.
    fn name(&self, path: &str) -> Option<Name> {
        let path = self.dir.join(path);
        let name = path.strip_prefix(&self.dir).ok()?.to_str()?;
        (!name.is_empty() && !name.contains('/')).then(|| name.to_string())
    }

    fn new_inode(&mut self) -> Inode {
        self.first.push(Content::default());
        self.live.push(Content::default());
        self.live.len() - 1
    }

    /// The file that a descriptor is, if it is one of the directory's.
    fn file(&self, process: &str, argument: &str) -> Option<Inode> {
        let (fd, path) = descriptor(argument)?;
        let known = self.open.get(&(process.to_string(), fd)).copied();
        let by_name = || self.names.get(&self.name(&path)?).copied();
        self.nameless.get(&path).copied().or_else(by_name).or(known)
    }

    fn take(&mut self, process: &str, line: &str) {
        let Some((call, rest)) = line.split_once('(') else { return };
        let Some((arguments, result)) = rest.rsplit_once(" = ") else { return };
        let arguments = arguments.trim_end();
        let arguments = split(arguments.strip_suffix(')').unwrap_or(arguments));
        if result.trim_start().starts_with(['-', '?']) {
            return;
        }
        match call {
            "open" => self.open(process, arguments[0], arguments[1], result),
            "openat" => self.open(process, arguments[1], arguments[2], result),
            "fcntl" if arguments[1].starts_with("F_DUPFD") => self.dup(process, &arguments, result),
            "dup" | "dup2" | "dup3" => self.dup(process, &arguments, result),
            "linkat" => self.link(process, &arguments),
            "rename" => self.rename(arguments[0], arguments[1], ""),
            "renameat" => self.rename(arguments[1], arguments[3], ""),
            "renameat2" => self.rename(arguments[1], arguments[3], arguments[4]),
            "unlink" => self.unlink(arguments[0]),
            "unlinkat" => self.unlink(arguments[1]),
            "fsync" | "fdatasync" => self.sync(process, arguments[0]),
            _ => self.data(call, process, &arguments, result),
        }
    }

    fn open(&mut self, process: &str, asked: &str, flags: &str, result: &str) {
        let Some((fd, path)) = descriptor(result.trim()) else { return };
        let key = (process.to_string(), fd);
        self.position.insert(key.clone(), 0);
        self.open.remove(&key);
        if flags.contains("O_TMPFILE") && self.dir.join(text_of(asked)) == self.dir {
            let inode = self.new_inode();
            self.nameless.insert(path, inode);
            self.open.insert(key, inode);
            return;
        }
        if Path::new(&path).parent() == self.dir.parent() && path.contains("/mark-") {
            self.marks.push(self.events.len());
        }
        let Some(name) = self.name(&path) else { return };
        let known = self.nameless.get(&path).or_else(|| self.names.get(&name)).copied();
        let inode = match known {
            Some(inode) => inode,
            None if flags.contains("O_CREAT") => {
                let inode = self.new_inode();
                self.push(Event::Names(vec![(name, Some(inode))]));
                inode
            }
            None => return,
        };
        if flags.contains("O_TRUNC") && self.live[inode].length > 0 {
            self.push(Event::Length(inode, 0));
        }
        self.open.insert(key, inode);
    }

    fn dup(&mut self, process: &str, arguments: &[&str], result: &str) {
        let (Some(inode), Some((fd, _))) =
            (self.file(process, arguments[0]), descriptor(result.trim()))
        else {
            return;
        };
        self.open.insert((process.to_string(), fd), inode);
    }

    fn link(&mut self, process: &str, arguments: &[&str]) {
        let (from, to) = (text_of(arguments[1]), text_of(arguments[3]));
        let Some(name) = self.name(&to) else { return };
        let inode = match from.strip_prefix("/proc/") {
            Some(rest) => {
                let fd = rest.rsplit_once('/').expect("a descriptor").1;
                self.open[&(process.to_string(), fd.to_string())]
            }
            None => self.names[&self.name(&from).expect("in the directory")],
        };
        self.push(Event::Names(vec![(name, Some(inode))]));
    }

    fn rename(&mut self, from: &str, to: &str, how: &str) {
        let names = (self.name(&text_of(from)), self.name(&text_of(to)));
        let (Some(from), Some(to)) = names else { return };
        let (moved, other) = (self.names[&from], self.names.get(&to).copied());
        let behind = other.filter(|_| how.contains("RENAME_EXCHANGE"));
        self.push(Event::Names(vec![(from, behind), (to, Some(moved))]));
    }

    fn unlink(&mut self, path: &str) {
        let Some(name) = self.name(&text_of(path)) else { return };
        let inode = self.names[&name];
        self.nameless.insert(self.dir.join(&name).display().to_string(), inode);
        self.push(Event::Names(vec![(name, None)]));
        // What is opened by this name from now on is another file.
        let path = self.dir.join(text_of(path)).display().to_string();
        self.nameless.remove(&path);
    }

    fn sync(&mut self, process: &str, argument: &str) {
        let is_dir = |(_, path): &(String, String)| Path::new(path) == self.dir;
        if descriptor(argument).as_ref().is_some_and(is_dir) {
            self.push(Event::SyncNames(self.begun));
        } else if let Some(inode) = self.file(process, argument) {
            self.push(Event::Sync(inode, self.begun));
        }
    }

    fn data(&mut self, call: &str, process: &str, arguments: &[&str], result: &str) {
        let target = if call == "copy_file_range" { arguments[2] } else { arguments[0] };
        let Some(inode) = self.file(process, target) else { return };
        let done = || number(result.split_whitespace().next().expect("a result"));
        match call {
            "write" => {
                let (fd, _) = descriptor(target).expect("a descriptor");
                let at = self.position.entry((process.to_string(), fd)).or_default();
                let start = *at;
                *at += done();
                let bytes = unescape(arguments[1]);
                self.push(Event::Write(inode, start, bytes[..done() as usize].to_vec()));
            }
            "pwrite64" => {
                let bytes = unescape(arguments[1])[..done() as usize].to_vec();
                self.push(Event::Write(inode, number(arguments[3]), bytes));
            }
            "pwritev2" => self.gathered(inode, arguments, done()),
            "ftruncate" => self.push(Event::Length(inode, number(arguments[1]))),
            "fallocate" => self.allocate(inode, arguments),
            "copy_file_range" => {
                let (start, length) = (offset(arguments[1]), done());
                let bytes = match self.file(process, arguments[0]) {
                    Some(from) => self.live[from].read(start, length),
                    // From elsewhere, where it is still.
                    None => Content::of(Path::new(&descriptor(arguments[0]).expect("a file").1))
                        .read(start, length),
                };
                self.push(Event::Write(inode, offset(arguments[3]), bytes));
            }
            "ioctl" if arguments[1].contains("FICLONE") => {
                let content = self.source(process, arguments[2]);
                self.push(Event::Share(inode, content));
            }
            "lseek" => {
                let (fd, _) = descriptor(target).expect("a descriptor");
                self.position.insert((process.to_string(), fd), done());
            }
            "ioctl" | "fcntl" => {}
            other => panic!("{other} on a file of the directory is not understood"),
        }
    }

    fn gathered(&mut self, inode: Inode, arguments: &[&str], done: u64) {
        let pieces = arguments[1].split("iov_base=\"").skip(1);
        let text = pieces.map(|piece| piece.split('"').next().unwrap_or_default());
        let mut bytes: Vec<u8> = text.flat_map(unescape).collect();
        bytes.truncate(done as usize);
        self.push(Event::Write(inode, number(arguments[3]), bytes));
        if arguments[4].contains("DSYNC") {
            self.push(Event::Through(self.events.len() - 1));
        }
    }

    /// What a descriptor without annotation is open on.
    fn source(&self, process: &str, fd: &str) -> Content {
        let fd = fd.split('<').next().expect("a descriptor").to_string();
        self.live[self.open[&(process.to_string(), fd)]].clone()
    }

    fn allocate(&mut self, inode: Inode, arguments: &[&str]) {
        let (how, at, length) = (arguments[1], number(arguments[2]), number(arguments[3]));
        if how.contains("PUNCH_HOLE") || how.contains("ZERO_RANGE") {
            self.push(Event::Zero(inode, at, length));
        }
        if !how.contains("KEEP_SIZE") && at + length > self.live[inode].length {
            self.push(Event::Length(inode, at + length));
        }
    }
}

/// An offset behind a pointer: `[4096]`, before and after.
fn offset(argument: &str) -> u64 {
    let first = argument.trim_start_matches('[').split([']', ' ']).next().expect("an offset");
    number(first)
}
