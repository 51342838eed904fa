//! `polylane image`: container images, kept in the state directory.

use std::path::PathBuf;

use clap::Subcommand;
use polylane_base::size::ByteSize;
use polylane_image::{Error, Image, Limits, Store};
use polylane_pool::failure::{Failure, Result};
use polylane_volume as volume;
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
            print(&format!("{}\n", image.name))?;
        }
        ImageCommand::Ls(json) => list(&store.list().map_err(failed)?, json.json)?,
        ImageCommand::Rm { images } => {
            for image in &images {
                store.remove(image).map_err(failed)?;
            }
        }
        ImageCommand::Export { image, to } => store.export(&image, &to).map_err(failed)?,
    }
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
