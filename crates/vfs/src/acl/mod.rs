//! POSIX access control lists, as in acl(5): who has which rights on an inode beyond what its mode
//! says, and what new inodes in a directory get.
//!
//! A list travels as the value of an extended attribute (`linux/posix_acl_xattr.h`, version 2):
//!
//! ```text
//! version u32 = 2; entries {tag u16, rights u16, id u32}, by rising tag
//! tags: 1 owner · 2 a user · 4 owning group · 8 a group · 16 mask · 32 others
//! ```
//!
//! Owner, owning group and others are in every list, once; the mask is where users or groups are
//! named. The mode of an inode repeats the owner's rights, those of the mask (or of the owning
//! group where there is none) and those of others.

use polylane_base::{Errno, Gid, Result, Uid};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::ctx::OpCtx;

polylane_base::record! {
    /// `struct posix_acl_xattr_header`.
    struct HeaderRecord: 4 {
        0x00 version: U32,
    }

    /// `struct posix_acl_xattr_entry`.
    struct EntryRecord: 8 {
        0x00 tag: U16,
        0x02 rights: U16,
        0x04 id: U32,
    }
}

const VERSION: u32 = 2;
const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHERS: u16 = 32;
/// In entries that name nobody.
const NO_ID: u32 = u32::MAX;
/// All rights of an entry.
const RIGHTS: u32 = 7;

/// Permission bits of the owning group and of others.
pub const OF_OTHERS: u32 = 0o077;

/// Which of [`OF_OTHERS`] an access list leaves where bits alone decide, by its attribute's value.
/// Nothing where it is not well-formed, or cannot be read.
pub fn granted(list: Result<Vec<u8>>) -> u32 {
    match list.and_then(|value| Acl::parse(&value)) {
        Ok(list) => list.map_or(OF_OTHERS, |list| list.mode_alone() & OF_OTHERS),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => OF_OTHERS,
        Err(_) => 0,
    }
}

/// Permission bits that grant nobody more than a list does that leaves `granted` of [`OF_OTHERS`]:
/// the mode of an inode with a list has the mask in the group's place.
pub fn less_granted(perm: u32, granted: u32) -> u32 {
    perm & (granted | !OF_OTHERS)
}

/// Which of an inode's two lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclKind {
    /// The one that decides about the inode.
    Access = 0,
    /// The one that what is made in a directory begins with.
    Default = 1,
}

impl AclKind {
    /// The extended attribute that holds it.
    pub const fn name(self) -> &'static [u8] {
        match self {
            AclKind::Access => b"system.posix_acl_access",
            AclKind::Default => b"system.posix_acl_default",
        }
    }

    /// The list of that attribute, if it is one's.
    pub fn from_name(name: &[u8]) -> Option<AclKind> {
        [AclKind::Access, AclKind::Default].into_iter().find(|kind| kind.name() == name)
    }
}

/// A well-formed list. Rights are bits: read 4, write 2, execute or search 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    owner: u32,
    users: Vec<(Uid, u32)>,
    group: u32,
    groups: Vec<(Gid, u32)>,
    mask: Option<u32>,
    others: u32,
}

impl Acl {
    /// The list in an attribute's value; `None` for a value without entries, which stands for no
    /// list. `EOPNOTSUPP` for another version, `EINVAL` for anything that is not well-formed:
    /// unknown tags and rights, a wrong order, entries that are missing or there twice.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>> {
        let Ok((header, entries)) = HeaderRecord::ref_from_prefix(value) else {
            return if value.is_empty() { Ok(None) } else { Err(Errno::EINVAL) };
        };
        if header.version != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        match <[EntryRecord]>::ref_from_bytes(entries) {
            Ok([]) => Ok(None),
            Ok(entries) => Acl::from_entries(entries).map(Some),
            Err(_) => Err(Errno::EINVAL),
        }
    }

    fn from_entries(entries: &[EntryRecord]) -> Result<Acl> {
        let mut acl = Acl {
            owner: 0,
            users: Vec::new(),
            group: 0,
            groups: Vec::new(),
            mask: None,
            others: 0,
        };
        let (mut seen, mut last) = (0, 0);
        for entry in entries {
            let (tag, rights) = (entry.tag.get(), u32::from(entry.rights.get()));
            let id = entry.id.get();
            let again = tag == last && tag & (USER | GROUP) == 0;
            if rights & !RIGHTS != 0 || tag < last || again {
                return Err(Errno::EINVAL);
            }
            match tag {
                OWNER => acl.owner = rights,
                USER if id != NO_ID => acl.users.push((Uid(id), rights)),
                OWNING_GROUP => acl.group = rights,
                GROUP if id != NO_ID => acl.groups.push((Gid(id), rights)),
                MASK => acl.mask = Some(rights),
                OTHERS => acl.others = rights,
                _ => return Err(Errno::EINVAL),
            }
            (seen, last) = (seen | tag, tag);
        }
        let needed = OWNER | OWNING_GROUP | OTHERS;
        let needed = if seen & (USER | GROUP) != 0 { needed | MASK } else { needed };
        if seen & needed == needed { Ok(acl) } else { Err(Errno::EINVAL) }
    }

    /// The attribute's value.
    pub fn to_value(&self) -> Vec<u8> {
        let mut value = HeaderRecord { version: VERSION.into() }.as_bytes().to_vec();
        let mut put = |tag: u16, rights: u32, id: u32| {
            let rights = (rights as u16).into();
            let entry = EntryRecord { tag: tag.into(), rights, id: id.into() };
            value.extend_from_slice(entry.as_bytes());
        };
        put(OWNER, self.owner, NO_ID);
        self.users.iter().for_each(|(uid, rights)| put(USER, *rights, uid.0));
        put(OWNING_GROUP, self.group, NO_ID);
        self.groups.iter().for_each(|(gid, rights)| put(GROUP, *rights, gid.0));
        if let Some(mask) = self.mask {
            put(MASK, mask, NO_ID);
        }
        put(OTHERS, self.others, NO_ID);
        value
    }

    /// The nine permission bits of an inode with this list.
    pub fn mode(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.others
    }

    /// The nine permission bits that grant nobody more than the list does, where bits alone decide:
    /// the owning group has what its entry and every named user's grant, others what all those and
    /// every named group's do. A named user has no more than the group and others.
    pub fn mode_alone(&self) -> u32 {
        let masked = |rights: u32| rights & self.mask.unwrap_or(RIGHTS);
        let users = self.users.iter().fold(RIGHTS, |all, (_, rights)| all & masked(*rights));
        let groups = self.groups.iter().fold(users, |all, (_, rights)| all & masked(*rights));
        let others = self.others & groups;
        self.owner << 6 | (masked(self.group) & users) << 3 | others
    }

    /// Whether the mode says all that the list says.
    pub fn is_mode_alone(&self) -> bool {
        self.mask.is_none() && self.users.is_empty() && self.groups.is_empty()
    }

    /// The same list with other numbers of those that it names.
    pub(crate) fn with_names(&self, number: impl Fn(u32) -> Result<u32>) -> Result<Acl> {
        let users = self.users.iter().map(|(uid, rights)| Ok((Uid(number(uid.0)?), *rights)));
        let groups = self.groups.iter().map(|(gid, rights)| Ok((Gid(number(gid.0)?), *rights)));
        let (users, groups) = (users.collect::<Result<_>>()?, groups.collect::<Result<_>>()?);
        Ok(Acl { users, groups, ..self.clone() })
    }

    /// Whether `ctx`, who is not the owner, has all rights in `want` on an inode of that group.
    /// The access check algorithm of acl(5): a user that is named, else the groups, one of which
    /// must grant all of it, else others.
    pub(crate) fn permits(&self, ctx: &OpCtx<'_>, group: Gid, want: u32) -> bool {
        let masked = |rights: u32| rights & self.mask.unwrap_or(RIGHTS) & want == want;
        if let Some((_, rights)) = self.users.iter().find(|(uid, _)| *uid == ctx.uid()) {
            return masked(*rights);
        }
        let groups = std::iter::once((group, self.group)).chain(self.groups.iter().copied());
        let mut own = groups.filter(|(gid, _)| ctx.in_group(*gid)).peekable();
        match own.peek() {
            Some(_) => own.any(|(_, rights)| masked(rights)),
            None => self.others & want == want,
        }
    }

    /// What something gets that is made with permission bits `perm` in a directory with this
    /// default list: its list, and its bits. Both grant what the two agree on.
    pub(crate) fn inherited(&self, perm: u32) -> (Acl, u32) {
        let mut acl = self.clone();
        acl.owner &= perm >> 6;
        *acl.group_class() &= perm >> 3;
        acl.others &= perm;
        let perm = perm & !0o777 | acl.mode();
        (acl, perm)
    }

    /// The list after chmod(2) to `perm`.
    pub(crate) fn with_mode(&self, perm: u32) -> Acl {
        let mut acl = self.clone();
        acl.owner = perm >> 6 & RIGHTS;
        *acl.group_class() = perm >> 3 & RIGHTS;
        acl.others = perm & RIGHTS;
        acl
    }

    /// What the mode's group bits mean.
    fn group_class(&mut self) -> &mut u32 {
        self.mask.as_mut().unwrap_or(&mut self.group)
    }
}

/// The access control lists of something new.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acls<'a> {
    /// Its own; its mode agrees with it.
    pub access: Option<&'a Acl>,
    /// That of a directory, for what is made in it.
    pub default: Option<&'a Acl>,
}

impl<'a> Acls<'a> {
    /// No lists.
    pub const NONE: Acls<'static> = Acls { access: None, default: None };

    /// Each that there is.
    pub fn each(self) -> impl Iterator<Item = (AclKind, &'a Acl)> {
        let access = self.access.map(|acl| (AclKind::Access, acl));
        access.into_iter().chain(self.default.map(|acl| (AclKind::Default, acl)))
    }
}

#[cfg(test)]
mod tests;
