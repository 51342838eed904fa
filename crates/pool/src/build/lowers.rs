//! A lane's files over its lowers: unions, which may have unions among their layers.

use polylane_base::sync::Arc;
use polylane_ceph::Client;
use polylane_front::Handover;
use polylane_union::{Absent, Layer, OpenError, Union, UpperOn};
use polylane_vfs::FileSystem;
use polylane_volume::disk;
use serde_json::{Value, json};

use super::{Below, Own, metadata_blocks};
use crate::cluster::directory;
use crate::failure::{Failure, Result};
use crate::file_cache::Caches;
use crate::lower;
use crate::spec::{LowerSpec, PoolSpec};

/// Names that lowers do not have may take this part of the cache's limit beside it, and no more
/// than that.
const ABSENT_PART: u64 = 64;
const ABSENT_BYTES_MAX: u64 = 4 << 20;

/// What layers are made with.
pub(super) struct Lowers<'a, 'b> {
    spec: &'a PoolSpec,
    client: Option<&'a Client>,
    caches: &'a mut Caches<'b>,
    absent: Arc<Absent>,
    /// The unions among them, each after those in it.
    unions: Vec<Arc<Union>>,
}

/// A lane's files that are a union.
pub(super) struct Over {
    pub(super) union: Arc<Union>,
    layers: Arc<Layers>,
    /// No other lane is over the layers.
    is_only: bool,
}

/// The layers under a lane, opened, which lanes of one service may share: each has a union of its
/// own over the same libservices, with their caches and open files. Without any, the lane is what
/// its own files are.
pub(crate) struct Layers {
    all: Parted,
    /// Those that are unions.
    unions: Vec<Arc<Union>>,
    absent: Arc<Absent>,
}

/// Layers, the uppermost first, and those of them that show no names.
type Parted = (Vec<Arc<Layer>>, Vec<Arc<Layer>>);

impl Over {
    /// Lets go of all layers, when the lane uses the files no more.
    pub(super) fn close(&self) {
        self.union.close();
        if self.is_only {
            self.layers.unions.iter().rev().for_each(|union| union.close());
        }
    }

    /// What statistics say of names that lowers do not have.
    pub(super) fn absent_names(&self) -> Value {
        let stats = self.layers.absent.stats();
        json!({ "names": stats.names, "bytes": stats.bytes, "hits": stats.hits })
    }
}

impl<'a, 'b> Lowers<'a, 'b> {
    pub(super) fn new(
        spec: &'a PoolSpec,
        client: Option<&'a Client>,
        caches: &'a mut Caches<'b>,
    ) -> Lowers<'a, 'b> {
        let bytes = (spec.cache_bytes_limit / ABSENT_PART).min(ABSENT_BYTES_MAX);
        let absent = Absent::new(usize::try_from(bytes).unwrap_or(0));
        Lowers { spec, client, caches, absent, unions: Vec::new() }
    }

    /// Opens the lowers that the specification names.
    pub(super) fn open(mut self, lowers: Vec<Below>) -> Result<Layers> {
        let all = self.layers(&self.spec.lowers, lowers)?;
        Ok(Layers { all, unions: self.unions, absent: self.absent })
    }

    fn layers(&mut self, specs: &[LowerSpec], lowers: Vec<Below>) -> Result<Parted> {
        let (mut layers, mut data_only) = (Vec::new(), Vec::new());
        for (of, lower) in specs.iter().zip(lowers) {
            let layer = self.layer(of, lower)?;
            if of.is_data_only { data_only.push(layer) } else { layers.push(layer) }
        }
        Ok((layers, data_only))
    }

    fn layer(&mut self, of: &LowerSpec, lower: Below) -> Result<Arc<Layer>> {
        let label = &of.label;
        let (fs, union): (Own, Option<Arc<Union>>) = match lower {
            Below::Host(host) => (Arc::new(host), None),
            Below::Cluster(path) => (directory(self.spec, self.client, &path)?, None),
            Below::Volume(files) => {
                let cache_blocks = metadata_blocks(self.spec);
                let options =
                    polylane_ext4::Options { cache_blocks, ..polylane_ext4::Options::default() };
                let clock = self.caches.clock();
                (Arc::new(disk::open_lower(label, files, clock, &options)?), None)
            }
            Below::Union(below) => {
                let (layers, data_only) = self.layers(&of.layers, below)?;
                let union = Union::open_with_data(layers, data_only, None);
                let union = Arc::new(union.map_err(|error| refused(&of.layers, error))?);
                self.unions.push(union.clone());
                (union.clone(), Some(union))
            }
        };
        let fs: Arc<dyn FileSystem> = self.caches.over_lower(of, fs)?;
        let absent = of.is_fixed.then_some(&self.absent);
        let layer = match (union, absent) {
            (Some(union), absent) => Layer::of_union(fs, &union, absent),
            (None, Some(absent)) => Layer::fixed(fs, absent),
            (None, None) => Layer::new(fs),
        };
        layer.map_err(|error| Failure::because(label, "use it as a lower", error))
    }
}

impl Layers {
    /// The lane's files: what it has of its own, over the layers if there are any, as a union.
    /// `is_only`: no other lane is over them.
    pub(super) fn under(
        self: &Arc<Self>,
        spec: &PoolSpec,
        upper: Option<Own>,
        (handover, is_only): (Option<&Handover>, bool),
    ) -> Result<(Own, Option<Over>)> {
        let upper = match upper {
            Some(fs) if spec.lowers.is_empty() => return Ok((fs, None)),
            upper => upper,
        };
        let (layers, data_only) = self.all.clone();
        let volatile = spec.write_back.volatile;
        let upper = upper.map(|fs| UpperOn::new(fs).volatile(volatile));
        let union = match handover {
            Some(handover) => {
                let records = handover.take_union();
                Union::handed_over(layers, data_only, upper, handover.store.clone(), &records)
            }
            None => Union::open_with_data(layers, data_only, upper),
        };
        let union = Arc::new(union.map_err(|error| refused(&spec.lowers, error))?);
        lower::say_what_changed(&union, spec);
        let over = Over { union: union.clone(), layers: self.clone(), is_only };
        Ok((union, Some(over)))
    }
}

/// Why a union of such layers cannot be.
fn refused(layers: &[LowerSpec], error: OpenError) -> Failure {
    match error {
        OpenError::Lower(at, errno) => {
            let label = layers.get(at).map_or("lane", |layer| layer.label.as_str());
            Failure::because(label, "read it as a lower", errno)
        }
        error => Failure::failed(format!("lane: {error}")),
    }
}
