//! The JSON documents of OCI layouts and of `docker save`.

use std::collections::BTreeMap;

use polylane_base::shown::Shown;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::members::Members;

pub(crate) const LAYOUT_FILE: &str = "oci-layout";
pub(crate) const INDEX_FILE: &str = "index.json";
pub(crate) const DOCKER_FILE: &str = "manifest.json";

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";

/// The annotation with an image's name.
pub(crate) const NAME: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// Most indexes in each other.
const DEPTH_MAX: usize = 4;

/// Most layers of an image, as many as overlayfs takes.
const LAYERS_MAX: usize = 500;

/// What refers to a blob.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Value>,
}

impl Descriptor {
    /// Refuses what has another size than is said.
    pub(crate) fn expect_size(&self, size: u64, object: &str) -> Result<()> {
        match self.size == size {
            true => Ok(()),
            false => Err(Error::bad(
                object,
                format!("has {size} bytes, and {} are said of it", self.size),
            )),
        }
    }

    pub(crate) fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let media_type = media_type.to_string();
        Descriptor { media_type, digest, size, annotations: BTreeMap::new(), platform: None }
    }

    /// The image's name by its annotations.
    fn name(&self) -> Option<&String> {
        self.annotations.get(CONTAINERD_NAME).or_else(|| self.annotations.get(NAME))
    }

    /// The same of a layer, by OCI's name for how it is packed.
    pub(crate) fn in_oci(mut self) -> Self {
        let known = match self.media_type.as_str() {
            DOCKER_LAYER => Some(LAYER),
            DOCKER_LAYER_GZIP => Some(LAYER_GZIP),
            DOCKER_LAYER_ZSTD => Some(LAYER_ZSTD),
            _ => None,
        };
        self.media_type = known.map_or(self.media_type, str::to_string);
        self
    }

    fn is_index(&self) -> bool {
        self.media_type == INDEX || self.media_type == DOCKER_INDEX
    }

    /// Whether it is for this machine. One that says nothing is for every machine.
    fn is_for_this_machine(&self) -> bool {
        let Some(platform) = &self.platform else { return true };
        platform["os"] == "linux" && platform["architecture"] == architecture()
    }
}

/// This machine's architecture, as images call it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

/// A layer as a source has it.
pub(crate) struct SourceLayer {
    /// Its file in the source.
    pub(crate) file: String,
    /// The digest of that file; `None`: the source does not say it.
    pub(crate) blob: Option<Descriptor>,
    /// The digest of its tar file.
    pub(crate) diff_id: Digest,
}

/// An image as a source describes it.
pub(crate) struct SourceImage {
    pub(crate) name: Option<String>,
    /// `None`: it is to be made.
    pub(crate) manifest: Option<(Descriptor, Vec<u8>)>,
    pub(crate) config: Vec<u8>,
    pub(crate) layers: Vec<SourceLayer>,
}

/// Reads JSON.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], object: &str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::bad(object, format!("cannot be read: {error}")))
}

/// The file of a blob in a layout.
pub(crate) fn blob_file(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// A document of a layout, its digest verified.
fn blob(members: &Members, descriptor: &Descriptor, what: &str) -> Result<Vec<u8>> {
    let digest = &descriptor.digest;
    let object = format!("{what} {digest}");
    let Some(bytes) = members.document(&blob_file(digest))? else {
        return Err(Error::bad(object, "not in the source"));
    };
    match Digest::of(&bytes) == *digest {
        true => descriptor.expect_size(bytes.len() as u64, &object).map(|()| bytes),
        false => Err(Error::bad(object, "its bytes have another digest")),
    }
}

/// The image of an OCI layout. `wanted`: its name, where there are several.
pub(crate) fn of_oci(members: &Members, object: &str, wanted: Option<&str>) -> Result<SourceImage> {
    let index = members.document(INDEX_FILE)?.unwrap_or_default();
    let index: Index = parse(&index, &format!("{object}: {INDEX_FILE}"))?;
    let mut name = None;
    let mut descriptor = choose(index.manifests, object, wanted)?;
    for _ in 0..DEPTH_MAX {
        name = name.or_else(|| descriptor.name().cloned());
        if !descriptor.is_index() {
            let bytes = blob(members, &descriptor, "manifest")?;
            return of_manifest(members, name, descriptor, bytes);
        }
        let bytes = blob(members, &descriptor, "index")?;
        let index: Index = parse(&bytes, &format!("index {}", descriptor.digest))?;
        descriptor = choose(index.manifests, object, None)?;
    }
    Err(Error::bad(object, format!("more than {DEPTH_MAX} indexes in each other")))
}

fn choose(all: Vec<Descriptor>, object: &str, wanted: Option<&str>) -> Result<Descriptor> {
    let count = all.len();
    let mut fitting: Vec<_> = all.into_iter().filter(Descriptor::is_for_this_machine).collect();
    if fitting.len() > 1 {
        fitting.retain(|one| wanted.is_some() && one.name().map(String::as_str) == wanted);
    }
    match (fitting.pop(), count) {
        (Some(one), _) if fitting.is_empty() => Ok(one),
        (_, 0) => Err(Error::bad(object, "no image in it")),
        (_, 1) => Err(Error::bad(object, format!("not for linux/{}", architecture()))),
        _ => Err(Error::bad(
            object,
            format!("{count} images in it: write the NAME of one for linux/{}", architecture()),
        )),
    }
}

fn of_manifest(
    members: &Members,
    name: Option<String>,
    descriptor: Descriptor,
    bytes: Vec<u8>,
) -> Result<SourceImage> {
    let object = format!("manifest {}", descriptor.digest);
    let manifest: Manifest = parse(&bytes, &object)?;
    let config = blob(members, &manifest.config, "config")?;
    let diff_ids = diff_ids(&config)?;
    check_count(manifest.layers.len(), diff_ids.len(), &object)?;
    let layers = manifest.layers.into_iter().zip(diff_ids).map(|(blob, diff_id)| SourceLayer {
        file: blob_file(&blob.digest),
        blob: Some(blob),
        diff_id,
    });
    let layers = layers.collect();
    Ok(SourceImage { name, manifest: Some((descriptor, bytes)), config, layers })
}

/// The image of a `docker save`. `wanted`: its name, where there are several.
pub(crate) fn of_docker(
    members: &Members,
    object: &str,
    wanted: Option<&str>,
) -> Result<SourceImage> {
    let manifest = members.document(DOCKER_FILE)?.unwrap_or_default();
    let object = format!("{object}: {DOCKER_FILE}");
    let mut images: Vec<DockerImage> = parse(&manifest, &object)?;
    if images.len() > 1 {
        let has = |image: &DockerImage| {
            image.repo_tags.iter().flatten().any(|tag| Some(tag.as_str()) == wanted)
        };
        images.retain(has);
    }
    let Some(image) = images.pop().filter(|_| images.is_empty()) else {
        return Err(Error::bad(object, "not one image: write the NAME of one of its images"));
    };
    let Some(config) = members.document(&image.config)? else {
        return Err(Error::bad(
            object,
            format!("its config {} is not in the source", Shown::new(&image.config)),
        ));
    };
    let file = image.config.rsplit('/').next().unwrap_or_default();
    let said = Digest::parse(&format!("sha256:{}", file.trim_end_matches(".json")));
    if said.is_some_and(|said| said != Digest::of(&config)) {
        return Err(Error::bad(
            format!("config {}", Shown::new(file)),
            "its bytes have another digest",
        ));
    }
    let diff_ids = diff_ids(&config)?;
    check_count(image.layers.len(), diff_ids.len(), &object)?;
    let layers = image.layers.into_iter().zip(diff_ids);
    let layers = layers.map(|(file, diff_id)| SourceLayer { file, blob: None, diff_id }).collect();
    let name = image.repo_tags.unwrap_or_default().into_iter().next();
    Ok(SourceImage { name, manifest: None, config, layers })
}

fn diff_ids(config: &[u8]) -> Result<Vec<Digest>> {
    let object = format!("config {}", Digest::of(config));
    Ok(parse::<Config>(config, &object)?.rootfs.diff_ids)
}

fn check_count(layers: usize, diff_ids: usize, object: &str) -> Result<()> {
    match layers {
        0 => Err(Error::bad(object, "no layer in it")),
        _ if layers != diff_ids => {
            Err(Error::bad(object, format!("{layers} layers, but the config has {diff_ids}")))
        }
        _ => check_layer_count(layers, object),
    }
}

/// Refuses more layers than an image may have.
pub(crate) fn check_layer_count(layers: usize, object: &str) -> Result<()> {
    match layers {
        0..=LAYERS_MAX => Ok(()),
        _ => Err(Error::bad(object, format!("{layers} layers; {LAYERS_MAX} at most"))),
    }
}

/// The media type of a layer's file.
pub(crate) fn layer_type(compression: crate::compression::Compression) -> &'static str {
    match compression {
        crate::compression::Compression::Plain => LAYER,
        crate::compression::Compression::Gzip => LAYER_GZIP,
        crate::compression::Compression::Zstd => LAYER_ZSTD,
    }
}

/// The manifest of an image that had none.
pub(crate) fn new_manifest(config: &[u8], layers: &[Descriptor]) -> Vec<u8> {
    let config = Descriptor::new(CONFIG, Digest::of(config), config.len() as u64);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": layers,
    });
    manifest.to_string().into_bytes()
}

/// The config of a root file system that nothing describes.
pub(crate) fn new_config(diff_id: &Digest) -> Vec<u8> {
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Cmd": ["/bin/sh"],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    config.to_string().into_bytes()
}

/// The config of an image with one layer more.
pub(crate) fn with_layer(config: &Value, diff_id: &Digest) -> Result<Vec<u8>> {
    let mut config = config.clone();
    let ids = config.pointer_mut("/rootfs/diff_ids").and_then(Value::as_array_mut);
    let ids = ids.ok_or_else(|| Error::bad("config", "says no layers"))?;
    ids.push(json!(diff_id));
    // Where there is a history, it tells of every layer.
    if let Some(history) = config.get_mut("history").and_then(Value::as_array_mut) {
        history.push(json!({ "created_by": "polylane image diff" }));
    }
    Ok(config.to_string().into_bytes())
}

/// What `docker load` reads of an archive.
pub(crate) fn docker_manifest(name: &str, config: &Digest, layers: &[Digest]) -> Vec<u8> {
    let layers: Vec<_> = layers.iter().map(blob_file).collect();
    let tags: Vec<_> = repository_tag(name).into_iter().collect();
    let images = json!([{ "Config": blob_file(config), "RepoTags": tags, "Layers": layers }]);
    images.to_string().into_bytes()
}

/// The name with a tag, as docker has it; `None`: docker has no such names.
fn repository_tag(name: &str) -> Option<String> {
    let start = name.rfind('/').map_or(0, |at| at + 1);
    let (repository, tag) = match name[start..].find(':') {
        Some(at) => (&name[..start + at], &name[start + at + 1..]),
        None => (name, "latest"),
    };
    let is_part = |part: &str| {
        let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = part.as_bytes();
        let known = |byte: &u8| byte.is_ascii_lowercase() || b"0123456789._-:".contains(byte);
        bytes.iter().all(known) && is_end(bytes.first()) && is_end(bytes.last())
    };
    let is_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let is_good = repository.split('/').all(is_part) && !tag.is_empty() && tag.bytes().all(is_tag);
    is_good.then(|| format!("{repository}:{tag}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_tags_as_docker_has_them() {
        for (name, expected) in [
            ("web", Some("web:latest")),
            ("web:1", Some("web:1")),
            ("reg:5000/a/web", Some("reg:5000/a/web:latest")),
            ("reg:5000/a/web:v1.2_x", Some("reg:5000/a/web:v1.2_x")),
            ("Web", None),
            ("a//b", None),
            ("web:", None),
            ("web@sha256:00", None),
            ("a+b", None),
        ] {
            assert_eq!(repository_tag(name).as_deref(), expected, "{name}");
        }
    }
}
