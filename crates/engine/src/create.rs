//! The making of a container, from what it is to be.

use std::path::Path;

use polylane_pool::ceph::CephPlace;
use polylane_pool::failure::{Failure, Result, say};
use polylane_pool::names;

use crate::container::{self, Container, Wanted, check, failed, hostname, joined, specify, utf8};
use crate::listed::All;
use crate::place::{self, Lock, Place};
use crate::record::{Record, Stage};
use crate::runtime;
use crate::store;

impl Container {
    /// Makes a container, which is not started.
    ///
    /// # Errors
    /// One line: no such image, pool or runtime, the name is in use, an option is wrong. Nothing is
    /// left behind.
    pub fn create(wanted: &Wanted) -> Result<Container> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::failed(
                "container: only root can mount a container's lane: use 'polylane run --root'",
            ));
        }
        check(wanted)?;
        let runtime = runtime::find(wanted.runtime.as_deref())?;
        let hostname = hostname(wanted, &joined(wanted)?)?;
        let store = container::store()?;
        let image = store.find(&wanted.image).map_err(failed)?;
        let config = store.config(&image).map_err(failed)?;
        let layers = store.lowers(&image);
        let dir = place::all_dir()?;
        place::make_all(&dir)?;
        if let Some(at) = &wanted.store {
            clear_store(at)?;
        }
        let (container, lock) = reserve(&dir, |id, others| {
            let layers = layers.iter().map(|path| utf8(path)).collect::<Result<_>>()?;
            let mut record = specify(wanted, &config["config"], (id, others))?;
            record.image = image.name.clone();
            record.image_id = image.id();
            record.layers = layers;
            record.hostname = hostname.clone().unwrap_or(record.hostname);
            record.runtime = utf8(&runtime)?;
            Ok(record)
        })?;
        let made = store.hold(&image, &container.record.id).map_err(failed).and_then(|()| {
            let mut record = Record { stage: Stage::Ready, ..container.record.clone() };
            if let Some(at) = &record.store {
                let own = (&container.place, &lock);
                record.layers = store::add(own, (&record, at), (&store, &image))?;
            }
            container.place.write("record.json", &record)?;
            Ok(Container { record, place: container.place.clone() })
        });
        made.inspect_err(|_| drop(container.remove_all(&lock, true)))
    }
}

/// Removes what killed or failed commands have left of containers in this store, as far as that
/// succeeds: who makes one there waits for its cluster anyway.
fn clear_store(at: &CephPlace) -> Result<()> {
    let left = All::look()?.left.into_iter();
    let here = left.filter(|one| one.record.store.as_ref() == Some(at));
    here.for_each(|one| one.remove(true).unwrap_or_else(say));
    Ok(())
}

/// Makes a container's directory with a record that says `making`, under a free name.
fn reserve(
    dir: &Path,
    specify: impl FnOnce(String, &[Container]) -> Result<Record>,
) -> Result<(Container, Lock)> {
    let _names = place::lock_names(dir)?;
    let All { ready, new, left } = All::look()?;
    let others = [ready, new, left].concat();
    let id = names::fresh_id("container")?;
    let record = specify(id.clone(), &others)?;
    let place = Place::of(dir, &id);
    let lock = place.make(&record)?;
    Ok((Container { place, record }, lock))
}
