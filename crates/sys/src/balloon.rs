//! Whether the host takes free memory of this guest back.

/// Bit of a memory balloon's features: it tells its host of free pages (virtio 1.2, 5.5.3).
const PAGE_REPORTING: usize = 5;

/// Most pages of one piece of free memory, as a power of two; to report larger ones only is to
/// report none.
const ORDER_MAX: u32 = 10;

/// Whether this guest tells its host which pages are free, who then takes them.
pub fn reports_free_pages() -> bool {
    let order = "/sys/module/page_reporting/parameters/page_reporting_order";
    let order = std::fs::read_to_string(order).ok().and_then(|text| text.trim().parse().ok());
    let devices = std::fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon");
    let offers = |path: std::path::PathBuf| {
        let features = std::fs::read(path.join("features")).unwrap_or_default();
        features.get(PAGE_REPORTING) == Some(&b'1')
    };
    order.is_none_or(|order: u32| order <= ORDER_MAX)
        && devices.is_ok_and(|found| found.flatten().any(|device| offers(device.path())))
}
