//! A breadth-first search over a graph that is read from a file whenever a line comes in.
//!
//! The file has three numbers of 8 bytes, magic, vertices and edges; then, for each vertex and once
//! for the end, where its edges begin (8 bytes); then the vertex that each edge leads to (4 bytes).
//! All are little-endian. It is read by ordinary calls, by 1 MiB at a time.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use polylane_base::rng::Rng;

use super::{LARGE, Length};

/// Its name among the loads, of which it is none: it only reads, and works once for each line.
pub(crate) const LOAD: &str = "gapbs-bfs";

const MAGIC: u64 = u64::from_le_bytes(*b"plgraph1");

const HEAD_BYTES: u64 = 24;

/// Vertices have 1 to this many edges, 16 on the average.
const DEGREE_MAX: u64 = 31;

/// A vertex that was not reached.
const NONE: u32 = u32::MAX;

/// How large a graph is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size {
    pub(crate) vertices: u64,
    pub(crate) edges: u64,
}

impl Size {
    /// Bytes of its file.
    pub(crate) fn bytes(self) -> u64 {
        HEAD_BYTES + (self.vertices + 1) * 8 + self.edges * 4
    }

    /// Whether a file of so many bytes can have it.
    fn fits(self, bytes: u64) -> bool {
        // Bounded before they are multiplied.
        let bounded = self.vertices < u64::from(NONE) && self.edges <= bytes / 4;
        self.vertices > 0 && bounded && self.bytes() == bytes
    }
}

/// Makes a graph whose file has about so many bytes; the same each time.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn make(path: &Path, bytes: u64) -> io::Result<Size> {
    // 8 bytes for where a vertex's edges begin, 4 for each of the 16.
    let vertices = (bytes / 72).clamp(1, u64::from(NONE) - 1);
    let edges = (0..vertices).map(degree).sum();
    let size = Size { vertices, edges };
    let mut out = BufWriter::with_capacity(LARGE, File::create(path)?);
    for number in [MAGIC, vertices, edges] {
        out.write_all(&number.to_le_bytes())?;
    }
    let mut begin = 0_u64;
    for vertex in 0..=vertices {
        out.write_all(&begin.to_le_bytes())?;
        begin += degree(vertex);
    }
    let mut rng = Rng::new(vertices);
    for _ in 0..edges {
        out.write_all(&(rng.below(vertices) as u32).to_le_bytes())?;
    }
    out.into_inner()?.sync_all()?;
    Ok(size)
}

fn degree(vertex: u64) -> u64 {
    1 + vertex * 7 % DEGREE_MAX
}

/// Says `ready`; then, for each line of standard input, reads the graph, searches it `length` times
/// and says in one line how many vertices and edges it has seen, and how many steps the last vertex
/// is away.
///
/// # Errors
/// The file cannot be read or has no graph; the length is not a count.
pub(super) fn work(path: &Path, length: Length) -> Result<()> {
    let Length::Ops(searches) = length else { anyhow::bail!("'{length}' is no count of searches") };
    println!("ready");
    io::stdout().flush()?;
    for line in io::stdin().lock().lines() {
        line?;
        let graph = Graph::read(path).with_context(|| format!("read {}", path.display()))?;
        let mut all = Seen::default();
        for number in 0..searches {
            // Any other vertex each time.
            let seen = graph.search((number * 607 % graph.vertices()) as u32);
            all.vertices += seen.vertices;
            all.edges += seen.edges;
            all.steps = all.steps.max(seen.steps);
        }
        println!("{} {} {}", all.vertices, all.edges, all.steps);
        io::stdout().flush()?;
    }
    Ok(())
}

/// A graph in memory. All edges lead to vertices that there are.
struct Graph {
    /// For each vertex where its edges begin, and once more where the last one's end.
    begins: Vec<u64>,
    /// Where each edge leads.
    targets: Vec<u32>,
}

/// What a search has seen.
#[derive(Default, PartialEq, Eq, Debug)]
struct Seen {
    vertices: u64,
    edges: u64,
    steps: u64,
}

impl Graph {
    fn read(path: &Path) -> io::Result<Graph> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let head = numbers(&mut file, 3, u64::from_le_bytes)?;
        let size = Size { vertices: head[1], edges: head[2] };
        if head[0] != MAGIC || !size.fits(bytes) {
            return Err(invalid("no graph, or not all of one"));
        }
        let begins = numbers(&mut file, size.vertices + 1, u64::from_le_bytes)?;
        let targets = numbers(&mut file, size.edges, u32::from_le_bytes)?;
        let (first, last) = (begins.first(), begins.last());
        if first != Some(&0) || last != Some(&size.edges) || !begins.is_sorted() {
            return Err(invalid("a vertex's edges are not where the graph says"));
        }
        if targets.iter().any(|&target| u64::from(target) >= size.vertices) {
            return Err(invalid("an edge leads out of the graph"));
        }
        Ok(Graph { begins, targets })
    }

    fn vertices(&self) -> u64 {
        self.begins.len() as u64 - 1
    }

    fn edges(&self, vertex: u32) -> &[u32] {
        let vertex = vertex as usize;
        &self.targets[self.begins[vertex] as usize..self.begins[vertex + 1] as usize]
    }

    /// Goes from `source` to all vertices that can be reached, the nearest first.
    fn search(&self, source: u32) -> Seen {
        let mut parents = vec![NONE; self.begins.len() - 1];
        parents[source as usize] = source;
        let mut seen = Seen { vertices: 1, ..Seen::default() };
        let (mut frontier, mut next) = (vec![source], Vec::new());
        loop {
            for &vertex in &frontier {
                let edges = self.edges(vertex);
                seen.edges += edges.len() as u64;
                for &target in edges {
                    if parents[target as usize] == NONE {
                        parents[target as usize] = vertex;
                        next.push(target);
                    }
                }
            }
            if next.is_empty() {
                return seen;
            }
            seen.vertices += next.len() as u64;
            seen.steps += 1;
            frontier.clear();
            std::mem::swap(&mut frontier, &mut next);
        }
    }
}

/// Reads so many numbers of `N` bytes each; the file was found to have them.
fn numbers<T, const N: usize>(
    file: &mut File,
    count: u64,
    of: fn([u8; N]) -> T,
) -> io::Result<Vec<T>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count as usize)?;
    let mut buffer = vec![0; LARGE];
    let mut left = count as usize * N;
    while left > 0 {
        let part = &mut buffer[..left.min(LARGE)];
        file.read_exact(part)?;
        let each = part.chunks_exact(N).map(|bytes| of(bytes.try_into().expect("N bytes")));
        all.extend(each);
        left -= part.len();
    }
    Ok(all)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(numbers: &[u64], begins: &[u64], targets: &[u32]) -> Vec<u8> {
        let longs = numbers.iter().chain(begins).flat_map(|number| number.to_le_bytes());
        longs.chain(targets.iter().flat_map(|target| target.to_le_bytes())).collect()
    }

    fn read(bytes: &[u8]) -> io::Result<Graph> {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("graph");
        fs::write(&path, bytes).expect("a file");
        Graph::read(&path)
    }

    #[test]
    fn a_search_sees_what_can_be_reached_by_the_shortest_way() {
        // 0 → 1 → 2 → 3, 0 → 2, 3 → 0; nothing leads to 4.
        let bytes = file(&[MAGIC, 5, 6], &[0, 2, 3, 4, 5, 6], &[1, 2, 2, 3, 0, 0]);
        let graph = read(&bytes).expect("a graph");
        assert_eq!(graph.search(0), Seen { vertices: 4, edges: 5, steps: 2 });
        assert_eq!(graph.search(1), Seen { vertices: 4, edges: 5, steps: 3 });
        assert_eq!(graph.search(4), Seen { vertices: 5, edges: 6, steps: 3 });
    }

    #[test]
    fn a_made_graph_is_the_same_each_time_and_all_of_it_is_near() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        // More than one buffer of each kind of number.
        let sizes = paths.each_ref().map(|path| make(path, 12 << 20).expect("a graph"));
        assert_eq!(sizes[0], sizes[1]);
        let [first, second] = paths.each_ref().map(|path| fs::read(path).expect("a file"));
        assert!(first == second);
        assert_eq!(first.len() as u64, sizes[0].bytes());
        assert!(first.len().abs_diff(12 << 20) < 1 << 10, "{}", first.len());
        let graph = Graph::read(&paths[0]).expect("a graph");
        let seen = graph.search(0);
        assert!(seen.vertices * 100 >= graph.vertices() * 99, "{seen:?}");
        assert!((3..20).contains(&seen.steps), "{seen:?}");
    }

    #[test]
    fn what_is_no_graph_is_an_error() {
        let good = file(&[MAGIC, 2, 2], &[0, 1, 2], &[1, 0]);
        assert!(read(&good).is_ok());
        for cut in 0..good.len() {
            assert!(read(&good[..cut]).is_err(), "{cut}");
        }
        for (what, bytes) in [
            ("magic", file(&[MAGIC + 1, 2, 2], &[0, 1, 2], &[1, 0])),
            ("vertices", file(&[MAGIC, u64::MAX, 2], &[0, 1, 2], &[1, 0])),
            ("edges", file(&[MAGIC, 2, u64::MAX], &[0, 1, 2], &[1, 0])),
            ("no vertex", file(&[MAGIC, 0, 0], &[0], &[])),
            ("first", file(&[MAGIC, 2, 2], &[1, 1, 2], &[1, 0])),
            ("order", file(&[MAGIC, 2, 2], &[0, 3, 2], &[1, 0])),
            ("last", file(&[MAGIC, 2, 2], &[0, 1, 1], &[1, 0])),
            ("target", file(&[MAGIC, 2, 2], &[0, 1, 2], &[1, 2])),
        ] {
            assert!(read(&bytes).is_err(), "{what}");
        }
    }
}
