//! Access control lists, well-formed or not, as the values of extended attributes.

/// Tag, rights and id of an entry, as in `linux/posix_acl_xattr.h`.
pub type Entry = (u16, u16, u32);

/// The id of entries that name nobody.
pub const NOBODY: u32 = u32::MAX;

/// The value that holds these entries, in their order.
pub fn value(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&rights.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// The value of a list that gives the same rights to all: owner, owning group and others, and user
/// 7, whom it names.
pub fn naming_one(rights: u16) -> Vec<u8> {
    let ids = [(1, NOBODY), (2, 7), (4, NOBODY), (16, NOBODY), (32, NOBODY)];
    value(ids.map(|(tag, id)| (tag, rights, id)))
}
