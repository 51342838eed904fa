//! Lists by the words of acl(5), examples and random ones.

use polylane_base::rng::Rng;
use polylane_base::sync::Arc;
use polylane_testkit::acl::Entry;

use super::*;
use crate::cred::Cred;

fn value(entries: &[Entry]) -> Vec<u8> {
    polylane_testkit::acl::value(entries.iter().copied())
}

fn parse(entries: &[Entry]) -> Result<Option<Acl>> {
    Acl::parse(&value(entries))
}

fn acl(entries: &[Entry]) -> Acl {
    parse(entries).expect("well-formed").expect("not empty")
}

fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
    let groups: Arc<[Gid]> = groups.iter().map(|gid| Gid(*gid)).collect();
    Cred { uid: Uid(uid), gid: Gid(gid), groups, ..Cred::root() }
}

const NONE: u32 = NO_ID;

#[test]
fn what_is_not_well_formed_is_refused() {
    let plain = [(OWNER, 7, NONE), (OWNING_GROUP, 5, NONE), (OTHERS, 0, NONE)];
    assert!(acl(&plain).is_mode_alone());
    assert_eq!(acl(&plain).mode(), 0o750);
    let whole =
        [plain[0], (USER, 6, 3), (USER, 4, 2), plain[1], (GROUP, 7, 1), (MASK, 4, 9), plain[2]];
    assert_eq!(acl(&whole).mode(), 0o740);
    // All but the id of an entry that has none come back.
    let mut same = whole;
    same[5].2 = NONE;
    assert_eq!(acl(&whole).to_value(), value(&same));
    for missing in 0..whole.len() {
        let mut less = whole.to_vec();
        let (tag, ..) = less.remove(missing);
        assert_eq!(parse(&less).is_ok(), tag & (USER | GROUP) != 0, "{tag}");
        let mut more = whole.to_vec();
        more.insert(missing, whole[missing]);
        assert_eq!(parse(&more).is_ok(), tag & (USER | GROUP) != 0, "{tag} twice");
    }
    for at in 1..whole.len() {
        let mut swapped = whole;
        swapped.swap(at - 1, at);
        assert_eq!(parse(&swapped).is_ok(), at == 2, "{at}");
    }
    for (tag, rights, id) in [(3, 0, 0), (0, 0, 0), (USER, 8, 1), (USER, 1, NONE), (64, 0, 0)] {
        let mut wrong = whole;
        wrong[1] = (tag, rights, id);
        assert_eq!(parse(&wrong), Err(Errno::EINVAL), "{tag} {rights} {id}");
    }
    let bytes = value(&whole);
    for cut in 1..bytes.len() {
        let empty = cut == size_of::<HeaderRecord>();
        assert_eq!(Acl::parse(&bytes[..cut]).ok(), empty.then_some(None), "{cut}");
    }
    assert_eq!(Acl::parse(b""), Ok(None));
    assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
}

#[test]
fn names_of_attributes() {
    for kind in [AclKind::Access, AclKind::Default] {
        assert_eq!(AclKind::from_name(kind.name()), Some(kind));
    }
    assert_eq!(AclKind::from_name(b"system.posix_acl_accessory"), None);
    assert_eq!(AclKind::from_name(b"system.posix_acl_"), None);
}

/// The examples that a reader would try.
#[test]
fn the_most_specific_entry_decides() {
    let list = acl(&[
        (OWNER, 7, NONE),
        (USER, 0, 1),
        (USER, 7, 2),
        (OWNING_GROUP, 4, NONE),
        (GROUP, 2, 10),
        (GROUP, 7, 11),
        (MASK, 5, NONE),
        (OTHERS, 2, NONE),
    ]);
    let rights = |cred: &Cred| {
        let granted = |want: &u32| list.permits(&OpCtx::as_user(cred), Gid(9), *want);
        (0..8).filter(granted).collect::<Vec<u32>>()
    };
    assert_eq!(rights(&cred(1, 11, &[9])), [0], "named with nothing");
    assert_eq!(rights(&cred(2, 99, &[])), [0, 1, 4, 5], "named, masked");
    assert_eq!(rights(&cred(3, 9, &[])), [0, 4], "owning group");
    assert_eq!(rights(&cred(3, 10, &[])), [0], "group, masked to nothing, not others");
    assert_eq!(rights(&cred(3, 99, &[9, 11])), [0, 1, 4, 5], "two groups");
    assert_eq!(rights(&cred(3, 99, &[98])), [0, 2], "others, not masked");
}

/// acl(5) word by word over the entries as they are stored, without the type.
fn model(entries: &[Entry], cred: &Cred, group: Gid, want: u16) -> bool {
    let of = |tag: u16| entries.iter().filter(move |entry| entry.0 == tag);
    let mask = of(MASK).next().map_or(7, |entry| entry.1);
    if let Some((_, rights, _)) = of(USER).find(|entry| entry.2 == cred.uid.0) {
        return rights & mask & want == want;
    }
    let mut matching = Vec::new();
    if cred.in_group(group) {
        matching.extend(of(OWNING_GROUP).map(|entry| entry.1));
    }
    matching.extend(of(GROUP).filter(|entry| cred.in_group(Gid(entry.2))).map(|entry| entry.1));
    if matching.is_empty() {
        return of(OTHERS).any(|entry| entry.1 & want == want);
    }
    matching.iter().any(|rights| rights & want == want) && mask & want == want
}

fn random_list(rng: &mut Rng) -> Vec<Entry> {
    let [owner, owning, mask, others] = std::array::from_fn(|_| rng.below(8) as u16);
    let mut list = vec![(OWNER, owner, NONE)];
    let mut named = |tag| {
        let count = rng.below(4);
        (0..count).map(|_| (tag, rng.below(8) as u16, rng.below(5) as u32)).collect::<Vec<Entry>>()
    };
    let (users, groups) = (named(USER), named(GROUP));
    let masked = !users.is_empty() || !groups.is_empty() || rng.below(2) == 0;
    list.extend(users);
    list.push((OWNING_GROUP, owning, NONE));
    list.extend(groups);
    list.extend(masked.then_some((MASK, mask, NONE)));
    list.push((OTHERS, others, NONE));
    list
}

#[test]
fn random_lists_agree_with_the_words_of_the_manual() {
    let mut rng = Rng::new(7);
    for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
        let list = random_list(&mut rng);
        let parsed = acl(&list);
        assert_eq!(parsed.to_value(), value(&list));
        let groups: Vec<u32> = (0..rng.below(3)).map(|_| rng.below(5) as u32).collect();
        let who = cred(1 + rng.below(5) as u32, rng.below(5) as u32, &groups);
        let group = Gid(rng.below(5) as u32);
        for want in 0..8 {
            let got = parsed.permits(&OpCtx::as_user(&who), group, want.into());
            assert_eq!(got, model(&list, &who, group, want), "{list:?} {who:?} {group} {want}");
        }
    }
}

#[test]
fn random_lists_and_their_modes_say_the_same() {
    let mut rng = Rng::new(8);
    for _ in 0..if cfg!(miri) { 100 } else { 5_000 } {
        let list = acl(&random_list(&mut rng));
        let perm = rng.below(0o10000) as u32;
        let (inherited, made) = list.inherited(perm);
        assert_eq!(made & 0o7000, perm & 0o7000);
        assert_eq!(made & 0o777, inherited.mode());
        assert_eq!(inherited.mode(), list.mode() & perm & 0o777);
        assert_eq!((&inherited.users, &inherited.groups), (&list.users, &list.groups));
        assert_eq!(inherited.is_mode_alone(), list.is_mode_alone());
        // What the mask hides stays: chmod brings it back.
        let changed = list.with_mode(perm);
        assert_eq!(changed.mode(), perm & 0o777);
        assert_eq!(changed.with_mode(list.mode()), list);
    }
}

/// Bits in a list's place grant nobody what the list does not, and are the list's own where it
/// names nobody.
#[test]
fn bits_alone_grant_no_more_than_the_list() {
    let mut rng = Rng::new(9);
    for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
        let entries = random_list(&mut rng);
        let list = acl(&entries);
        let bits = list.mode_alone();
        let groups: Vec<u32> = (0..rng.below(3)).map(|_| rng.below(5) as u32).collect();
        let who = cred(1 + rng.below(5) as u32, rng.below(5) as u32, &groups);
        let group = Gid(rng.below(5) as u32);
        let class = if who.in_group(group) { bits >> 3 } else { bits };
        for want in (0..8).filter(|want| class & want == *want) {
            let granted = list.permits(&OpCtx::as_user(&who), group, want);
            assert!(granted, "{entries:?} {who:?} {group} {want}");
        }
        assert!(!list.is_mode_alone() || bits == list.mode(), "{entries:?}");
    }
}
