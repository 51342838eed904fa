//! Hostile input for the doors of a lane: a list of commands, read from bytes. Plays for the fuzz
//! targets of `fuzz/` and, in a bounded run, for `cargo test -p polylane-front --test fuzz`.

pub mod channel;
pub mod fuse;

/// The reader of an input. Past its end everything is 0.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most so many bytes.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(count.min(self.0.len()));
        self.0 = tail;
        head
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from(self.u8()) | u16::from(self.u8()) << 8
    }

    /// A number that is often at an edge: a byte says which, or that eight follow.
    pub fn number(&mut self) -> u64 {
        const EDGES: [u64; 14] = [
            0,
            1,
            2,
            3,
            u64::MAX,
            u64::MAX - 1,
            i64::MAX as u64,
            i64::MIN as u64,
            u32::MAX as u64,
            1 << 32,
            4096,
            4095,
            1 << 20,
            (1 << 20) + 1,
        ];
        let which = usize::from(self.u8());
        match EDGES.get(which) {
            Some(edge) => *edge,
            None if which < 200 => which as u64 - EDGES.len() as u64,
            None => {
                let mut bytes = [0; 8];
                let given = self.bytes(8);
                bytes[..given.len()].copy_from_slice(given);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }
}

/// Names that commands use.
pub const NAMES: [&[u8]; 12] = [
    b"a",
    b"b",
    b"d",
    b"d/a",
    b"d/b",
    b".",
    b"..",
    b"/",
    b"",
    b"d/../a",
    b".polylane-slots",
    b"\xff\x01/\0",
];
