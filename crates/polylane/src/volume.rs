//! `polylane volume`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use polylane_base::shown::{Shown, escape_control};
use polylane_base::size::ByteSize;
use polylane_pool::attach::JournalMap;
use polylane_pool::failure::{FAILED, Failure, Result};
use polylane_pool::lasting;
use polylane_pool::live::PoolsAndAttachments;
use polylane_pool::lower::LowerSource;
use polylane_pool::rbd::ImagePlace;
use polylane_pool::run::{RunOptions, Source};
use polylane_pool::share::WEIGHTS;
use polylane_volume::path_text;
use polylane_volume::translation::Translation;
use polylane_volume::{
    self as volume, Check, Copy, CreateOptions, Form, Fragmentation, Info, Layer, Links,
    MediumKind, SetOptions,
};

use crate::args::ClusterArgs;
use crate::cli::{ExportFormat, FileSystemKind, ImportFormat, VolumeCommand, VolumeCreateArgs};
use crate::print::{content, print, print_json};
use crate::rbd;

/// Executes a volume command; the exit status.
pub(crate) fn execute(command: VolumeCommand) -> Result<u8> {
    match command {
        VolumeCommand::Create(arguments) => create(arguments)?,
        VolumeCommand::Ls { dirs, cluster, json } => return list(&dirs, &cluster, json.json),
        VolumeCommand::Info { volume, cluster, json } => match rbd::image(&volume, &cluster)? {
            Some(image) => image.info(&json)?,
            None => print_info(&volume, json.json)?,
        },
        VolumeCommand::Rm { volumes, cluster, force } => {
            volumes.iter().try_for_each(|path| match rbd::image(path, &cluster)? {
                Some(image) => image.remove(),
                None => volume::remove(path, force, &PoolsAndAttachments),
            })?;
        }
        VolumeCommand::Set { volume, weight, cache } => {
            check_weight(weight)?;
            rbd::refuse(&volume, "give options to 'run', 'mount' or 'attach'")?;
            volume::set(&volume, &SetOptions { weight, ..cache.options()? })?;
        }
        VolumeCommand::Resize { volume, size, cluster } => match rbd::image(&volume, &cluster)? {
            Some(image) => image.resize(size.0)?,
            None => volume::resize(&volume, size.0, &PoolsAndAttachments)?,
        },
        VolumeCommand::Solidify { upper, lower } => return solidify(&upper, &lower),
        VolumeCommand::Snapshot { volume, to, cluster } => match rbd::image(&volume, &cluster)? {
            Some(image) => image.snapshot(&to)?,
            None => volume::duplicate(&volume, &to, Copy::Snapshot, &PoolsAndAttachments)?,
        },
        VolumeCommand::Clone { volume, to, cluster } => match rbd::image(&volume, &cluster)? {
            Some(image) => image.clone_to(&to)?,
            None => volume::duplicate(&volume, &to, Copy::Clone, &PoolsAndAttachments)?,
        },
        VolumeCommand::Check { volume, repair, look } => {
            rbd::refuse(&volume, "attach it, and use e2fsck on the device")?;
            check(&volume, repair, look)?;
        }
        VolumeCommand::Import { from, volume, thick, format, medium } => {
            rbd::refuse(&volume, "attach a new one, and copy to the device, or use 'rbd import'")?;
            let medium = MediumKind::named(&medium).unwrap_or_default();
            let raw = format == Some(ImportFormat::Raw);
            volume::import(&from, &volume, Form { medium, thick, raw })?;
        }
        VolumeCommand::Export { volume, to, format } => {
            rbd::refuse(&volume, "use 'rbd export'")?;
            let named = to.extension().is_some_and(|extension| extension == "qcow2");
            volume::export(&volume, &to, format.map_or(named, |it| it == ExportFormat::Qcow2))?;
        }
        VolumeCommand::Map { volume, .. } if ImagePlace::named(&volume)?.is_some() => {
            rbd::refuse(&volume, "its cluster says where it lies: 'rbd info'")?;
        }
        VolumeCommand::Map { volume, journal: true, svg, json } => {
            print_journals(&volume, svg.as_deref(), json.json)?;
        }
        VolumeCommand::Map { svg: Some(_), .. } => {
            return Err(Failure::usage("--svg: draws journals alone: say --journal, too"));
        }
        VolumeCommand::Map { volume, json, .. } => print_map(&volume, json.json)?,
    }
    Ok(0)
}

fn create(arguments: VolumeCreateArgs) -> Result<()> {
    check_weight(arguments.weight)?;
    if let Some(image) = rbd::image(&arguments.volume, &arguments.cluster)? {
        return image.create(&arguments);
    }
    volume::make(&CreateOptions {
        path: arguments.volume,
        size: arguments.size.map(|size| size.0),
        ext4: arguments.fs == FileSystemKind::Ext4,
        thick: arguments.thick,
        medium: MediumKind::named(&arguments.medium).unwrap_or_default(),
        weight: arguments.weight,
        cache: arguments.cache.options()?,
    })
}

fn print_info(path: &Path, json: bool) -> Result<()> {
    let info = volume::info(path)?;
    match json {
        true => print_json(&info),
        false => print(&describe(&info)),
    }
}

/// Lists the volumes of directories and of pools of a cluster; the status.
fn list(dirs: &[PathBuf], cluster: &ClusterArgs, json: bool) -> Result<u8> {
    let (mut images, mut own) = (Vec::new(), Vec::new());
    for dir in dirs {
        match rbd::list(dir, cluster)? {
            Some(mut found) => images.append(&mut found),
            None => own.push(dir.clone()),
        }
    }
    if images.is_empty() && own.len() == dirs.len() {
        cluster.refuse(&"volume ls")?;
    }
    let (volumes, all) = match own.is_empty() && !dirs.is_empty() {
        true => (Vec::new(), true),
        false => volume::list(&own)?,
    };
    if json {
        let volumes = volumes.iter().map(|info| serde_json::json!(info));
        let images = images.iter().map(|info| serde_json::json!(info));
        print_json(&volumes.chain(images).collect::<Vec<_>>())?;
    } else {
        print(&(table(&volumes) + &images.iter().map(rbd::row).collect::<String>()))?;
    }
    Ok(if all { 0 } else { FAILED })
}

/// Makes an upper whole in its lane, or in one that is there as long as that takes; the status.
fn solidify(upper: &Path, lowers: &[OsString]) -> Result<u8> {
    if let Some(files) = polylane_pool::solidify::solidify(upper)? {
        let plural = if files == 1 { "file" } else { "files" };
        print(&format!("{}: {files} {plural} made whole\n", Shown::new(upper)))?;
        return Ok(0);
    }
    if lowers.is_empty() {
        return Err(Failure::usage(format!(
            "{}: no lane is on it: say what it is over with --lower",
            Shown::new(upper)
        )));
    }
    let whole = volume::expect(upper, Links::Own, "find it")?.path;
    let mut command = ["/proc/self/exe", "volume", "solidify"].map(OsString::from).to_vec();
    command.push(whole.into());
    let source = match upper.is_dir() {
        true => Source::Dir(upper.to_path_buf()),
        false => Source::Volume(Some(upper.to_path_buf())),
    };
    let lowers = lowers.iter().map(|text| LowerSource::parse(text)).collect::<Result<_>>()?;
    lasting::run(RunOptions { lowers, preload: false, ..RunOptions::new(source, command) })
}

fn check(volume: &Path, repair: bool, look: bool) -> Result<()> {
    let how = match (repair, look) {
        (true, _) => Check::Repair,
        (false, true) => Check::Look,
        (false, false) => Check::Settle,
    };
    let said = volume::check(volume, how)?;
    if std::io::stdout().is_terminal() {
        print(&said)?;
    }
    Ok(())
}

fn check_weight(weight: Option<u32>) -> Result<()> {
    match weight {
        Some(weight) if !WEIGHTS.contains(&weight) => {
            Err(Failure::usage("--weight: must be 1 to 10000"))
        }
        _ => Ok(()),
    }
}

fn table(volumes: &[Info]) -> String {
    let mut text = format!(
        "{:>10} {:>10} {:>10} {:>10}  {:<6} VOLUME\n",
        "SIZE", "ALLOCATED", "MAPPED", "SHARED", "USE"
    );
    for info in volumes {
        let usage = match (&info.used_by, info.snapshot) {
            (Some(_), _) => "in use",
            (None, true) => "snap",
            (None, false) => "-",
        };
        text += &format!(
            "{:>10} {:>10} {:>10} {:>10}  {usage:<6} {}\n",
            ByteSize(info.size_bytes).to_string(),
            ByteSize(info.allocated_bytes).to_string(),
            ByteSize(info.mapped_bytes).to_string(),
            info.shared_bytes.map_or("-".to_string(), |bytes| ByteSize(bytes).to_string()),
            Shown::new(&info.path)
        );
    }
    text
}

fn shown(path: &Path) -> String {
    Shown::new(path).to_string()
}

fn describe(info: &Info) -> String {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let known = |bytes: Option<u64>| bytes.map(size);
    let translated = info.translation != Translation::default();
    let lines = [
        ("volume", Some(shown(&info.path))),
        ("id", Some(info.id.clone()).filter(|id| !id.is_empty())),
        ("size", Some(size(info.size_bytes))),
        ("allocated", Some(size(info.allocated_bytes))),
        ("written", known(info.written_bytes)),
        ("reserved", known(info.reserved_bytes)),
        ("mapped", Some(size(info.mapped_bytes))),
        ("in bases", info.base.as_ref().map(|_| size(info.base_bytes))),
        ("shared", known(info.shared_bytes)),
        ("extents", info.extent_count.map(|count| count.to_string())),
        ("file system", Some(content(info.content).to_string())),
        ("in use by", info.used_by.as_deref().map(escape_control)),
        ("copy of", info.parent.clone()),
        ("base", info.base.as_ref().map(|base| shown(base))),
        ("bypass, in", info.pool.as_ref().map(|pool| shown(pool))),
        ("snapshot", info.snapshot.then(|| "yes".to_string())),
        ("cache", info.cache.map(|cache| cache.to_string())),
        ("translation", Some(info.translation.to_string()).filter(|_| translated)),
        ("weight", info.weight.map(|weight| weight.to_string())),
    ];
    let known = lines.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

/// Where a volume's cache sees journals: a table, JSON, and a picture.
fn print_journals(path: &Path, svg: Option<&Path>, json: bool) -> Result<()> {
    let map = polylane_pool::attach::journals(path)?;
    if let Some(file) = svg {
        std::fs::write(file, picture(&map))
            .map_err(|error| Failure::because(file.display().to_string(), "write it", error))?;
    }
    if json {
        return print_json(&map);
    }
    let mut text = String::new();
    if map.of_last_use {
        text += "of the last use:\n";
    }
    text += &format!("{:>16} {:>16} {:>14}\n", "FIRST", "END", "LENGTH");
    for (first, end) in &map.regions {
        text += &format!("{first:>16} {end:>16} {:>14}\n", length(*first, *end));
    }
    print(&text)
}

fn length(first: u64, end: u64) -> String {
    ByteSize(end.saturating_sub(first)).to_string()
}

/// The volume as a bar between its ends' addresses, its journals in red.
fn picture(map: &JournalMap) -> String {
    let scale = |byte: u64| byte as f64 / map.size_bytes.max(1) as f64 * 1000.0;
    let name = map.volume.file_name().unwrap_or(map.volume.as_os_str()).to_string_lossy();
    let mut title = format!("{}, {}: ", escaped(&name), ByteSize(map.size_bytes));
    title += match (map.regions.is_empty(), map.of_last_use) {
        (true, _) => "no journal is marked",
        (false, false) => "journals",
        (false, true) => "journals of the last use",
    };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 90\" \
         font-family=\"sans-serif\" font-size=\"16\">\n<title>{title}</title>\n\
         <text x=\"0\" y=\"18\">{title}</text>\n\
         <rect y=\"26\" width=\"1000\" height=\"40\" fill=\"#d8d8d8\"/>\n"
    );
    for (first, end) in &map.regions {
        let (x, width) = (scale(*first), scale(end.saturating_sub(*first)).max(0.5));
        text += &format!(
            "<rect x=\"{x:.2}\" y=\"26\" width=\"{width:.2}\" height=\"40\" fill=\"#d00000\">\
             <title>{first} to {end}, {}</title></rect>\n",
            length(*first, *end)
        );
    }
    let size = map.size_bytes;
    text += &format!(
        "<text x=\"0\" y=\"84\">0</text>\n\
         <text x=\"1000\" y=\"84\" text-anchor=\"end\">{size}</text>\n</svg>\n"
    );
    text
}

/// A name as XML's text. Control characters, which XML cannot have, are shown as `?`.
fn escaped(name: &str) -> String {
    let plain: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn print_map(path: &Path, json: bool) -> Result<()> {
    let layers = volume::map(path)?;
    let whole = Fragmentation::of(&layers);
    if json {
        return print_json(&serde_json::json!({
            "extent_count": whole.extent_count,
            "mean_extent_bytes": whole.mean_extent_bytes,
            "layers": layers.iter().map(layer_json).collect::<Vec<_>>(),
        }));
    }
    let mut text: String = layers.iter().map(layer_table).collect();
    if layers.len() > 1 {
        text += &format!("all: {}\n", pieces(whole));
    }
    print(&text)
}

fn layer_json(layer: &Layer) -> serde_json::Value {
    let rows = layer.extents.iter().map(|extent| {
        serde_json::json!({
            "offset": extent.offset,
            "physical": extent.physical,
            "length": extent.length,
            "unwritten": extent.unwritten,
            "shared": extent.shared,
        })
    });
    let its = Fragmentation::of(std::slice::from_ref(layer));
    serde_json::json!({
        "file": path_text::json(&layer.file),
        "base": layer.is_base,
        "extent_count": its.extent_count,
        "mean_extent_bytes": its.mean_extent_bytes,
        "extents": rows.collect::<Vec<_>>(),
    })
}

fn layer_table(layer: &Layer) -> String {
    let kind = if layer.is_base { "base" } else { "own" };
    let its = pieces(Fragmentation::of(std::slice::from_ref(layer)));
    let mut text = format!("{kind}: {}: {its}\n", Shown::new(&layer.file));
    text += &format!("{:>16} {:>16} {:>14}\n", "OFFSET", "ON THE HOST", "LENGTH");
    for extent in &layer.extents {
        let marks = [(extent.unwritten, " unwritten"), (extent.shared, " shared")];
        let marks: String = marks.iter().filter(|mark| mark.0).map(|mark| mark.1).collect();
        let (offset, physical, length) = (extent.offset, extent.physical, extent.length);
        text += &format!("{offset:>16} {physical:>16} {length:>14}{marks}\n");
    }
    text
}

fn pieces(its: Fragmentation) -> String {
    let mean = ByteSize(its.mean_extent_bytes);
    match its.extent_count {
        0 => "no extents".to_string(),
        1 => format!("1 extent of {mean}"),
        count => format!("{count} extents of {mean} on average"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(regions: &[(u64, u64)], of_last_use: bool) -> JournalMap {
        let volume = "/somewhere/a<&>b.img".into();
        JournalMap { volume, size_bytes: 64 << 20, of_last_use, regions: regions.to_vec() }
    }

    #[test]
    fn a_picture_says_what_it_is_of() {
        let drawn = picture(&map(&[(0, 4096), (16 << 20, 24 << 20)], false));
        assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "{drawn}");
        let title = "<title>a&lt;&amp;&gt;b.img, 64 MiB: journals</title>";
        assert!(drawn.contains(title), "{drawn}");
        assert!(drawn.contains("<title>16777216 to 25165824, 8 MiB</title>"), "{drawn}");
        assert!(drawn.contains(">0</text>") && drawn.contains(">67108864</text>"), "{drawn}");
        assert_eq!(drawn.matches("fill=\"#d00000\"").count(), 2);
        assert!(picture(&map(&[(0, 4096)], true)).contains("64 MiB: journals of the last use<"));
        let nothing = picture(&map(&[], false));
        assert!(nothing.contains("64 MiB: no journal is marked</text>"), "{nothing}");
    }
}
