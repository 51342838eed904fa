//! Records: structures whose bytes are a format's, on disk or on a wire.
//!
//! [`record!`](crate::record!) declares one as the tables of a format do: each field with its
//! offset, which is asserted at compile time, as is the record's size. The integers are those of
//! `zerocopy` with a byte order of their own, so a record may lie at any address. No code has
//! offsets besides: `cargo xtask tidy` looks for them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What [`record!`](crate::record!) declares: any bytes are one, at any address.
pub trait Record: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {}

impl<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned> Record for T {}

/// Declares records. The crate that uses it depends on `zerocopy`.
///
/// ```
/// use zerocopy::little_endian::{U16, U32};
///
/// polylane_base::record! {
///     /// What each entry begins with.
///     pub struct Header: 8 {
///         0x00 number: U32,
///         0x04 length: U16,
///         0x06 kind: u8,
///         0x07 unused: u8,
///     }
/// }
///
/// let header: &Header = polylane_base::record::at(&[7, 0, 0, 0, 8, 0, 2, 0], 0);
/// assert_eq!((header.number.get(), header.length.get(), header.kind), (7, 8, 2));
/// ```
#[macro_export]
macro_rules! record {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $bytes:literal {
            $($(#[$field_meta:meta])* $offset:literal $field:ident: $kind:ty),* $(,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::KnownLayout,
            ::zerocopy::Immutable, ::zerocopy::Unaligned,
        )]
        #[repr(C)]
        $vis struct $name {
            $($(#[$field_meta])* $vis $field: $kind,)*
        }

        const _: () = {
            assert!(::core::mem::size_of::<$name>() == $bytes, "size of a record");
            $(assert!(::core::mem::offset_of!($name, $field) == $offset, stringify!($field));)*
        };
    )*};
}

/// The record that begins at `at`; `None` where the bytes end before it does.
pub fn get<T: Record>(bytes: &[u8], at: usize) -> Option<&T> {
    Some(T::ref_from_prefix(bytes.get(at..)?).ok()?.0)
}

/// The same, to be written.
pub fn get_mut<T: Record>(bytes: &mut [u8], at: usize) -> Option<&mut T> {
    Some(T::mut_from_prefix(bytes.get_mut(at..)?).ok()?.0)
}

/// The record that begins at `at`.
///
/// # Panics
/// The bytes end before it does: as an index past a slice's end, the caller's mistake.
#[track_caller]
pub fn at<T: Record>(bytes: &[u8], at: usize) -> &T {
    get(bytes, at).expect("the bytes hold the record")
}

/// The same, to be written.
///
/// # Panics
/// As [`at`].
#[track_caller]
pub fn at_mut<T: Record>(bytes: &mut [u8], at: usize) -> &mut T {
    get_mut(bytes, at).expect("the bytes hold the record")
}

/// `count` records from `at` on; `None` where the bytes end before they do.
pub fn get_slice<T: Record>(bytes: &[u8], at: usize, count: usize) -> Option<&[T]> {
    Some(<[T]>::ref_from_prefix_with_elems(bytes.get(at..)?, count).ok()?.0)
}

/// `count` records from `at` on.
///
/// # Panics
/// As [`at`].
#[track_caller]
pub fn slice<T: Record>(bytes: &[u8], at: usize, count: usize) -> &[T] {
    get_slice(bytes, at, count).expect("the bytes hold the records")
}

/// The same, to be written.
///
/// # Panics
/// As [`at`].
#[track_caller]
pub fn slice_mut<T: Record>(bytes: &mut [u8], at: usize, count: usize) -> &mut [T] {
    let found = bytes.get_mut(at..).map(|bytes| <[T]>::mut_from_prefix_with_elems(bytes, count));
    found.and_then(Result::ok).expect("the bytes hold the records").0
}

#[cfg(test)]
mod tests {
    use zerocopy::{big_endian, little_endian};

    crate::record! {
        struct Both: 7 {
            0x00 kind: u8,
            0x01 little: little_endian::U32,
            0x05 big: big_endian::U16,
        }
    }

    #[test]
    fn records_are_read_and_written_at_any_address() {
        for at in 0..9 {
            let mut bytes = [0xee; 16];
            let record: &mut Both = super::at_mut(&mut bytes, at);
            (record.kind, record.big) = (1, 0x0203.into());
            record.little.set(0x0405_0607);
            assert_eq!(bytes[at..at + 7], [1, 7, 6, 5, 4, 2, 3]);
            assert_eq!(super::at::<Both>(&bytes, at).little.get(), 0x0405_0607);
            assert!(bytes[..at].iter().chain(&bytes[at + 7..]).all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn a_record_past_the_end_is_none() {
        let mut bytes = [0; 10];
        for at in [4, 10, 11, usize::MAX] {
            assert!(super::get::<Both>(&bytes, at).is_none(), "{at}");
            assert!(super::get_mut::<Both>(&mut bytes, at).is_none(), "{at}");
        }
        assert!(super::get::<Both>(&bytes, 3).is_some());
        assert!(super::get_slice::<Both>(&bytes, 0, 2).is_none());
        assert!(super::get_slice::<Both>(&bytes, 0, usize::MAX).is_none());
        assert!(super::get_slice::<Both>(&bytes, 11, 0).is_none());
        super::slice_mut::<Both>(&mut bytes, 3, 1)[0].kind = 9;
        assert_eq!(super::slice::<Both>(&bytes, 3, 1)[0].kind, 9);
    }
}
