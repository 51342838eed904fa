//! Sums of polynomial 0x04c11db7, highest bit first, by carry-less multiplication.
//!
//! A sum is the remainder of a polynomial. 16 bytes A, with B some bits behind them, have that of
//! `A · x^bits mod P` and B together, so many of them become a few by two multiplications each:
//!
//! ```text
//!  64 bytes ─┐ · x^512
//!  64 bytes ─┴─► 64 bytes ─┐
//!  64 bytes ───────────────┴─► … ─► 16 + 16 + 16 + 16 bytes ─ · x^128, three times ─► 16 bytes
//! ```
#![expect(unsafe_code, reason = "UNSAFETY: instructions that not every processor has")]

/// Bytes that are taken together.
pub type Step = [u8; 16];

/// 16 bytes with the remainder of all `steps`, to whose first bits `seed` is added. `None`: this
/// processor cannot, or they are too few.
pub fn fold_be(seed: u32, steps: &[Step]) -> Option<Step> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("pclmulqdq") && steps.len() >= LANES {
        // SAFETY: the processor has the one feature that the function is built for.
        return Some(unsafe { fold(seed, steps) });
    }
    let _ = (seed, steps);
    None
}

/// Steps side by side, of which none waits for another's multiplication.
const LANES: usize = 4;

/// What the first and the last 8 bytes of a step are multiplied by, to be added to the one that
/// lies so many bits behind it.
const fn multipliers(bits: u32) -> [i64; 2] {
    [power(bits + 64), power(bits)]
}

/// `x^power` modulo the polynomial.
const fn power(power: u32) -> i64 {
    let (mut sum, mut at) = (1u32, 0);
    while at < power {
        sum = (sum << 1) ^ ((sum >> 31) * 0x04c1_1db7);
        at += 1;
    }
    sum as i64
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq")]
fn fold(seed: u32, steps: &[Step]) -> Step {
    use std::arch::x86_64::{
        __m128i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_unpackhi_epi64,
        _mm_xor_si128,
    };
    use zerocopy::big_endian::U128;
    let load = |step: &Step| {
        let all = U128::from_bytes(*step).get();
        _mm_set_epi64x((all >> 64) as i64, all as i64)
    };
    let by = |[high, low]: [i64; 2]| _mm_set_epi64x(high, low);
    // What `step` adds to `next`, which lies `by` so many bits behind it.
    let add = |step: __m128i, by: __m128i, next: __m128i| {
        let high = _mm_clmulepi64_si128::<0x11>(step, by);
        let low = _mm_clmulepi64_si128::<0x00>(step, by);
        _mm_xor_si128(_mm_xor_si128(high, low), next)
    };
    let (rounds, rest) = steps.as_chunks::<LANES>();
    let mut lanes =
        [_mm_set_epi64x(i64::from(seed) << 32, 0), load(&[0; 16]), load(&[0; 16]), load(&[0; 16])];
    let far = by(const { multipliers(128 * LANES as u32) });
    for (at, round) in rounds.iter().enumerate() {
        for (lane, step) in lanes.iter_mut().zip(round) {
            *lane = match at {
                0 => _mm_xor_si128(*lane, load(step)),
                _ => add(*lane, far, load(step)),
            };
        }
    }
    let near = by(const { multipliers(128) });
    let [first, others @ ..] = lanes;
    let one = others.into_iter().fold(first, |sum, lane| add(sum, near, lane));
    let one = rest.iter().fold(one, |sum, step| add(sum, near, load(step)));
    let (high, low) = (_mm_cvtsi128_si64(_mm_unpackhi_epi64(one, one)), _mm_cvtsi128_si64(one));
    U128::new(u128::from(high as u64) << 64 | u128::from(low as u64)).to_bytes()
}
