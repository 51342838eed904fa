//! `polylane image`: container images, kept in the state directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use polylane_engine::{Container, Files};
use polylane_image::{Compression, Error, Image, Limits, Overlay, Store, check_name};
use polylane_pool::ceph::ClusterOptions;
use polylane_pool::failure::{Failure, Result, say};
use polylane_pool::lasting;
use polylane_pool::lower::LowerSource;
use polylane_pool::run::{LaneBeside, RunOptions, Source};
use polylane_volume::{self as volume, Links};
use serde_json::json;

use crate::args::JsonArgs;
use crate::print::{columns, print, print_json};

/// [`Limits::default`]'s bytes.
const BYTES_MAX: &str = "64G";

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Import an image; its layers are unpacked once, and shared by images and containers
    Import {
        /// An OCI layout (a directory or an archive), what 'docker save' wrote, or a root file
        /// system (a directory or a tar file); archives may be packed with gzip or zstd
        source: PathBuf,
        /// What to call it [default: as the source does, else as the file is called]
        name: Option<String>,
        /// Most bytes that it may unpack to, all its layers together
        #[arg(long, value_name = "SIZE", default_value = BYTES_MAX)]
        max_size: ByteSize,
        /// Most files and directories in all its layers
        #[arg(long, value_name = "N", default_value_t = Limits::default().members)]
        max_members: u64,
    },
    /// List images
    Ls(JsonArgs),
    /// Remove images, and layers that no other image or container has
    Rm {
        /// Names, or first digits of identities
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Write an image as an OCI archive
    Export {
        /// Its name, or first digits of its identity
        image: String,
        /// The new file, or - for standard output
        to: PathBuf,
    },
    /// Write what a container changed of its image as an OCI layer, or an image with it, which
    /// other tools load
    Diff(DiffArgs),
    /// What 'diff' runs in the lanes that it makes
    #[command(hide = true)]
    DiffTrees { base: PathBuf, merged: PathBuf, to: PathBuf, compress: String },
}

/// `polylane image diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The container; one that runs is paused meanwhile
    #[arg(required_unless_present = "upper", conflicts_with_all = ["upper", "lower"])]
    container: Option<String>,
    /// In place of a container, what lies over lowers: a volume, a lane's directory, or an
    /// 'upperdir' of the kernel's overlayfs
    #[arg(long, value_name = "DIR|VOLUME", requires = "lower")]
    upper: Option<PathBuf>,
    /// The lowers that it lies over, the uppermost first, as of 'run'
    #[arg(long, value_name = "SOURCE")]
    lower: Vec<OsString>,
    /// Write an image of this name: the container's with the layer over it, an archive as 'image
    /// export' writes
    #[arg(long = "as", value_name = "NAME", conflicts_with = "upper")]
    name: Option<String>,
    /// The new file, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// How the layer is packed: none, gzip or zstd
    #[arg(long, value_name = "HOW", default_value = "none")]
    #[arg(value_parser = ["none", "gzip", "zstd"])]
    compress: String,
}

/// The images of this host, or user.
pub(crate) fn store() -> Result<Store> {
    Ok(Store::in_state(&volume::state_dir()?))
}

pub(crate) fn failed(error: Error) -> Failure {
    Failure::failed(error.to_string())
}

/// Executes `polylane image`; the exit status.
pub(crate) fn execute(command: ImageCommand) -> Result<u8> {
    let store = store()?;
    match command {
        ImageCommand::Import { source, name, max_size: ByteSize(bytes), max_members: members } => {
            let limits = Limits { bytes, members };
            let image = store.import(&source, name.as_deref(), limits).map_err(failed)?;
            let squashed = image.squashed_count();
            if squashed > 0 {
                say(format!(
                    "{}: {squashed} files have other owners, devices or capabilities in it than \
                     here, where they are yours: import it as root to keep them",
                    image.name
                ));
            }
            print(&format!("{}\n", image.name))?;
        }
        ImageCommand::Ls(json) => list(&store.list().map_err(failed)?, json.json)?,
        ImageCommand::Rm { images } => {
            for image in &images {
                store.remove(image).map_err(failed)?;
            }
        }
        ImageCommand::Diff(arguments) => return diff(&store, arguments),
        ImageCommand::DiffTrees { base, merged, to, compress } => {
            polylane_image::diff(&base, &merged, &to, packing(&compress)).map_err(failed)?;
        }
        ImageCommand::Export { image, to } => store.export(&image, &to).map_err(failed)?,
    }
    Ok(0)
}

/// Where the lane with the upper is, for the command that reads it.
const MERGED: &str = "/lane";

/// Where the one with the lowers alone is.
const BASE: &str = "/lane-lowers";

fn packing(word: &str) -> Compression {
    match word {
        "gzip" => Compression::Gzip,
        "zstd" => Compression::Zstd,
        _ => Compression::Plain,
    }
}

/// Writes a layer, or an image with it; the exit status.
fn diff(store: &Store, arguments: DiffArgs) -> Result<u8> {
    let DiffArgs { container, upper, lower, name, output, compress } = arguments;
    if let Some(upper) = upper {
        let lowers = lower.iter().map(|text| LowerSource::parse(text)).collect::<Result<_>>()?;
        return diff_upper(&upper, lowers, &output, &compress);
    }
    name.as_deref().map_or(Ok(()), check_name).map_err(failed)?;
    let container = Container::find(&container.unwrap_or_default())?;
    let quiet = container.quiesce()?;
    let (lowers, cluster) = (&quiet.layers, &quiet.cluster);
    let layer_to = |to: &Path, compress: &str| match &quiet.files {
        Files::Volume(upper) => diff_upper(upper, lowers.clone(), to, compress),
        Files::Mounted(root) => diff_mounted((root, cluster), lowers.clone(), to, compress),
        Files::Cluster(upper) => {
            let upper = Source::Ceph(upper.clone());
            diff_over((upper, cluster.clone()), lowers.clone(), to, compress)
        }
    };
    let Some(name) = name else { return layer_to(&output, &compress) };
    let work = store.work().map_err(failed)?;
    let layer = work.path().join("layer");
    let status = layer_to(&layer, "none")?;
    if status == 0 {
        let over = (quiet.image_id.as_str(), name.as_str());
        let layer = (layer.as_path(), packing(&compress));
        store.export_over(over, layer, &output).map_err(failed)?;
    }
    Ok(status)
}

/// Writes a layer of an upper: in lanes, or in two mounts of the kernel's overlayfs where that
/// wrote it.
fn diff_upper(upper: &Path, lowers: Vec<LowerSource>, to: &Path, compress: &str) -> Result<u8> {
    let upper = volume::expect(upper, Links::Own, "find it")?.path;
    let lowers = lowers.iter().map(LowerSource::canonical).collect::<Result<Vec<_>>>()?;
    if upper.is_dir() && !upper.join("work").is_dir() {
        return diff_kernels(&upper, &lowers, to, compress);
    }
    let source = match upper.is_dir() {
        true => Source::Dir(upper),
        false => Source::Volume(Some(upper)),
    };
    diff_over((source, ClusterOptions::default()), lowers, to, compress)
}

/// Writes a layer of an upper in two lanes, one with it and one with its lowers alone.
fn diff_over(
    (source, cluster): (Source, ClusterOptions),
    lowers: Vec<LowerSource>,
    to: &Path,
    compress: &str,
) -> Result<u8> {
    let base = LaneBeside { source: Source::Lowers, lowers: lowers.clone(), at: BASE.into() };
    let own = RunOptions { cluster, ..RunOptions::new(source, Vec::new()) };
    let lane = RunOptions { lowers, more: vec![base], ..own };
    diff_in(lane, (BASE.as_ref(), MERGED.as_ref()), to, compress)
}

/// Writes a layer of the files at `root`, a lane's over these lowers: in a lane with them alone.
fn diff_mounted(
    (root, cluster): (&Path, &ClusterOptions),
    lowers: Vec<LowerSource>,
    to: &Path,
    compress: &str,
) -> Result<u8> {
    let cluster = cluster.clone();
    let lane = RunOptions { lowers, cluster, ..RunOptions::new(Source::Lowers, Vec::new()) };
    diff_in(lane, (MERGED.as_ref(), root), to, compress)
}

/// Compares two trees, of which one at least is a lane's of this run, at [`MERGED`].
fn diff_in(
    lane: RunOptions,
    (base, merged): (&Path, &Path),
    to: &Path,
    compress: &str,
) -> Result<u8> {
    let to = match to.to_str() {
        Some("-") => to.to_path_buf(),
        _ => std::path::absolute(to).map_err(|error| Failure::path(to, "find it", error))?,
    };
    let mut command = ["/proc/self/exe", "image", "diff-trees"].map(OsString::from).to_vec();
    command.extend([base.into(), merged.into(), to.into(), compress.into()]);
    lasting::run(RunOptions { at: MERGED.into(), preload: false, command, ..lane })
}

/// The same for the `upperdir` of an overlayfs.
fn diff_kernels(upper: &Path, lowers: &[LowerSource], to: &Path, compress: &str) -> Result<u8> {
    let dirs = lowers.iter().map(|lower| match lower.directory() {
        Some(path) => Ok(path.to_path_buf()),
        None => Err(Failure::usage(format!(
            "--lower {}: no directory with names, and {} is an upperdir of overlayfs",
            Shown::new(&*lower.path()),
            Shown::new(upper)
        ))),
    });
    let overlay = Overlay::mount(upper, &dirs.collect::<Result<Vec<_>>>()?).map_err(failed)?;
    let (base, merged) = (overlay.base(), overlay.merged());
    polylane_image::diff(&base, &merged, to, packing(compress)).map_err(failed)?;
    Ok(0)
}

fn list(images: &[Image], json: bool) -> Result<()> {
    if json {
        let all: Vec<_> = images
            .iter()
            .map(|image| {
                json!({
                    "name": image.name,
                    "id": image.id(),
                    "layers": image.layer_count(),
                    "bytes": image.bytes(),
                    "created": image.created,
                })
            })
            .collect();
        return print_json(&all);
    }
    let head = ["NAME", "ID", "LAYERS", "SIZE"].map(str::to_string);
    let rows = images.iter().map(|image| {
        let size = ByteSize(image.bytes()).to_string();
        [image.name.clone(), image.short_id().to_string(), image.layer_count().to_string(), size]
    });
    print(&columns(std::iter::once(head).chain(rows).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_shows_the_default_limit() {
        assert_eq!(BYTES_MAX.parse(), Ok(ByteSize(Limits::default().bytes)));
    }
}
