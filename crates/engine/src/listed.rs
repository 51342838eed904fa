//! Which containers there are, and what killed commands have left of others; one by its name.

use polylane_pool::ceph::CephPlace;
use polylane_pool::failure::{Failure, Result, say};

use crate::container::{self, Container};
use crate::place::{self, Place};
use crate::record::{Record, Stage};
use crate::store;

/// Fewest digits by which a container is found.
const DIGITS_MIN: usize = 4;

/// What there is of containers.
#[derive(Default)]
pub(crate) struct All {
    /// By their names.
    pub(crate) ready: Vec<Container>,
    /// That commands make just now: they have their names.
    pub(crate) new: Vec<Container>,
    /// What killed or failed commands have left, and have parts of in a store: who does not remove
    /// them does not wait for their clusters.
    pub(crate) left: Vec<Container>,
}

impl All {
    /// Removes what killed commands have left, but for what is in a store.
    pub(crate) fn look() -> Result<All> {
        let dir = place::all_dir()?;
        let mut all = All::default();
        for id in place::ids(&dir)? {
            let place = Place::of(&dir, &id);
            match place.read::<Record>("record.json") {
                Ok(Some(record)) if record.stage == Stage::Ready => {
                    all.ready.push(Container { place, record });
                }
                // One that cannot be removed or read keeps no command from the others.
                Ok(record) => all.clear(place, &id, record).unwrap_or_else(say),
                Err(failure) => say(failure),
            }
        }
        place::clear_new(&dir)?;
        all.ready.sort_by(|one, other| one.record.name.cmp(&other.record.name));
        Ok(all)
    }

    /// Removes what a killed `create` or `rm` has left, unless the command lives.
    fn clear(&mut self, place: Place, id: &str, record: Option<Record>) -> Result<()> {
        if !place.dir().exists() {
            return Ok(());
        }
        let Ok(Some(lock)) = place.try_lock() else {
            let new = record.filter(|record| record.stage == Stage::Making);
            self.new.extend(new.map(|record| Container { place, record }));
            return Ok(());
        };
        // It may have been finished meanwhile.
        let now = place.read::<Record>("record.json")?;
        let Some(record) = now.or(record) else {
            container::store()?.release(id).map_err(container::failed)?;
            return place.remove();
        };
        let is_stored = store::has_parts_of(&place, &record);
        let container = Container { place, record };
        match container.record.stage {
            Stage::Ready => self.ready.push(container),
            _ if is_stored => self.left.push(container),
            _ => container.remove_all(&lock, true)?,
        }
        Ok(())
    }
}

/// All containers, by their names. What commands that were killed have left is removed; where that
/// needs a cluster, it is said instead.
///
/// # Errors
/// A record cannot be read.
pub fn all() -> Result<Vec<Container>> {
    let All { ready, left, .. } = All::look()?;
    for Container { record, .. } in &left {
        let at = record.store.as_ref().map(CephPlace::to_string).unwrap_or_default();
        say(Failure::failed(format!(
            "{0}: has files in ceph:{at} and is not removed yet: 'polylane container rm {0}' goes \
             on with that",
            record.name
        )));
    }
    Ok(ready)
}

/// The one of that name, or whose identity begins with these digits.
fn pick(all: Vec<Container>, word: &str) -> Result<Container> {
    if let Some(found) = all.iter().find(|one| one.record.name == word) {
        return Ok(found.clone());
    }
    let is_it = |one: &&Container| word.len() >= DIGITS_MIN && one.record.id.starts_with(word);
    let mut found = all.iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.clone()),
        (Some(_), Some(_)) => {
            Err(Failure::failed(format!("{word}: several containers begin so: write more digits")))
        }
        _ => Err(Failure::failed(format!(
            "{word}: no such container: 'polylane container ps --all' lists them"
        ))),
    }
}

impl Container {
    /// The container of that name, or whose identity begins with these digits.
    ///
    /// # Errors
    /// One line: there is none, or the digits are those of several.
    pub fn find(word: &str) -> Result<Container> {
        pick(All::look()?.ready, word)
    }

    /// The same for who removes it: also one whose removal has begun and was cut off.
    ///
    /// # Errors
    /// As [`Container::find`].
    pub fn find_to_remove(word: &str) -> Result<Container> {
        let All { ready, left, .. } = All::look()?;
        pick([ready, left].concat(), word)
    }
}
