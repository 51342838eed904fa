//! A lane that a running service is to serve as well: its own files, and what the service is told.

use super::{RunOptions, open_source, pool_cpus, specify};
use crate::build::Handed;
use crate::failure::Result;
use crate::init::Place;
use crate::names;
use crate::spec::PoolSpec;

/// Opens the lane's own files, which are made if there are none, and says how they are served by
/// the service `lane` of `pool`. The options have the weight of its volume then.
///
/// # Errors
/// One line: they cannot be opened.
pub(crate) fn instance(
    options: &mut RunOptions,
    (pool, lane): (&str, &str),
    place: &Place,
) -> Result<(Handed, PoolSpec)> {
    let cpus = pool_cpus(options.cpus.as_ref())?;
    let (handed, label, kept) = open_source(options, pool)?;
    options.weight = options.weight.or(kept.weight);
    let uses = (options.cache.change(kept.cache), options.cache.translation.over(kept.translation));
    let running = names::running_in(&names::runtime_dir());
    let spec = specify(options, (label, uses, kept.bypass), (lane, running), place, cpus);
    Ok((handed, spec))
}
