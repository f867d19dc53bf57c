// One token a row of logits: greedy, or temperature, min-p, top-k, top-p and a random choice among what they leave.
// A workgroup a row. Nothing is sorted: thresholds are found digit by digit on integers that order as the logits do, with
// histograms of integer masses, so that no order of additions can matter. See sample.rs for the mathematics.
struct Params {
    vocab: u32, // logits a row
    pitch: u32, // words from one row to the next
}

struct Row {
    inverse_temperature: f32, // 0: greedy
    min_scaled: f32,          // the lowest scaled logit that min-p keeps
    top_p: f32,               // 1 or more: off
    top_k: u32,               // 0: off
    seed_low: u32,
    seed_high: u32,
    position: u32,
    unused: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<u32>; // [rows][pitch], the bits of f32
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>; // [rows]

// Keys order as logits do; this is minus infinity's, and a NaN's.
const LOWEST: u32 = 0x007fffffu;
// A row without a finite logit has no token.
const NO_TOKEN: u32 = 0xffffffffu;
// A mass is a fixed-point number of 26 fraction bits, added up in two halves that cannot overflow.
const HALF_BITS: u32 = 13u;
const HALF_MASK: u32 = 0x1fffu;

var<workgroup> bins_low: array<atomic<u32>, 256>;
var<workgroup> bins_high: array<atomic<u32>, 256>;
var<workgroup> best_keys: array<u32, WORKGROUP>;
var<workgroup> best_tokens: array<u32, WORKGROUP>;
var<workgroup> prefix: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = rows[workgroup.x];
    let base = workgroup.x * params.pitch;

    var best_key = 0u;
    var best_token = 0u;
    for (var i = thread; i < params.vocab; i += WORKGROUP) {
        let key = logit_key(logits[base + i]);
        if (key > best_key) {
            best_key = key;
            best_token = i;
        }
    }
    reduce_best(best_key, best_token, thread);
    let likeliest = best_tokens[0];
    let largest = key_value(best_keys[0]);
    // A greedy row, or one without a finite logit, skips the loops that follow but none of the barriers.
    let some = best_keys[0] > LOWEST;
    let random = row.inverse_temperature > 0.0 && some;
    let limit = select(0u, params.vocab, random);

    let count_limit = select(0u, limit, row.top_k > 0u && row.top_k < params.vocab);
    let count_floor = find_threshold(row, base, largest, LOWEST + 1u, count_limit, false, thread);
    let mass_limit = select(0u, limit, row.top_p < 1.0);
    let mass_floor = find_threshold(row, base, largest, max(count_floor, LOWEST + 1u), mass_limit, true, thread);
    let floor_key = max(max(count_floor, mass_floor), LOWEST + 1u);

    let stream = random_stream(row);
    best_key = 0u;
    best_token = likeliest;
    for (var i = thread; i < limit; i += WORKGROUP) {
        let key = logit_key(logits[base + i]);
        let scaled = scaled_logit(row, key, largest);
        if (key >= floor_key && scaled >= row.min_scaled) {
            let score = logit_key(bitcast<u32>(scaled + gumbel(random_bits(stream, i))));
            if (score > best_key) {
                best_key = score;
                best_token = i;
            }
        }
    }
    reduce_best(best_key, best_token, thread);
    if (thread == 0u) {
        tokens[workgroup.x] = select(NO_TOKEN, best_tokens[0], some);
    }
}

// A key that orders as the logit: NaN counts as minus infinity, plus infinity as the largest finite number, -0 as 0.
fn logit_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    var key = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    key = select(key, 0xff7fffffu, bits == 0x7f800000u);
    key = select(key, 0x80000000u, magnitude == 0u);
    return select(key, LOWEST, magnitude > 0x7f800000u);
}

fn key_value(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

// The logit relative to the largest one, over the temperature: 0 or below.
fn scaled_logit(row: Row, key: u32, largest: f32) -> f32 {
    return max((key_value(max(key, LOWEST + 1u)) - largest) * row.inverse_temperature, -1000.0);
}

// The largest key of all threads, and the lowest of its tokens, in best_keys[0] and best_tokens[0].
fn reduce_best(key: u32, token: u32, thread: u32) {
    best_keys[thread] = key;
    best_tokens[thread] = token;
    workgroupBarrier();
    for (var width = WORKGROUP / 2u; width > 0u; width = width / 2u) {
        if (thread < width) {
            let other = best_keys[thread + width];
            let other_token = best_tokens[thread + width];
            let own = best_keys[thread];
            if (other > own || (other == own && other_token < best_tokens[thread])) {
                best_keys[thread] = other;
                best_tokens[thread] = other_token;
            }
        }
        workgroupBarrier();
    }
}

// The largest key such that the tokens at or above it number top_k, or weigh top_p of all that are kept so far (at or above
// `floor_key`, and by min-p). 0 if there are too few, or if `limit` is 0.
fn find_threshold(
    row: Row, base: u32, largest: f32, floor_key: u32, limit: u32, by_mass: bool, thread: u32,
) -> u32 {
    // Thread 0's: what lies above the digits found so far, and what is to be reached.
    var above = vec2<u32>(0u);
    var goal = f32(row.top_k);
    if (thread == 0u) {
        prefix = 0u;
    }
    for (var digit = 0u; digit < 4u; digit++) {
        let shift = 24u - digit * 8u;
        for (var bin = thread; bin < 256u; bin += WORKGROUP) {
            atomicStore(&bins_low[bin], 0u);
            atomicStore(&bins_high[bin], 0u);
        }
        workgroupBarrier();
        let found = prefix;
        for (var i = thread; i < limit; i += WORKGROUP) {
            let key = logit_key(logits[base + i]);
            let scaled = scaled_logit(row, key, largest);
            let in_prefix = (((key ^ found) >> shift) >> 8u) == 0u;
            if (in_prefix && key >= floor_key && scaled >= row.min_scaled) {
                let mass = select(1u, u32(exp(scaled) * 67108864.0 + 0.5), by_mass);
                let bin = (key >> shift) & 255u;
                atomicAdd(&bins_low[bin], mass & HALF_MASK);
                atomicAdd(&bins_high[bin], mass >> HALF_BITS);
            }
        }
        workgroupBarrier();
        if (thread == 0u && limit > 0u) {
            if (by_mass && digit == 0u) {
                var total = vec2<u32>(0u);
                for (var bin = 0u; bin < 256u; bin++) {
                    total = add_bin(total, bin);
                }
                goal = mass_value(total) * row.top_p;
            }
            // From the highest digit down, until the goal is reached.
            var bin = 255u;
            var sum = add_bin(above, bin);
            while (bin > 0u && mass_value(sum) < goal) {
                above = sum;
                bin--;
                sum = add_bin(sum, bin);
            }
            prefix = found | (bin << shift);
        }
        workgroupBarrier();
    }
    let threshold = prefix;
    // Everybody has read it before it is used again.
    workgroupBarrier();
    return threshold;
}

// Masses are (low, high): low + high * 2^13, low below 2^13.
fn add_bin(mass: vec2<u32>, bin: u32) -> vec2<u32> {
    // A bin's low half may itself be large: its carry goes first.
    let bin_low = atomicLoad(&bins_low[bin]);
    let low = mass.x + (bin_low & HALF_MASK);
    let high = mass.y + atomicLoad(&bins_high[bin]) + (bin_low >> HALF_BITS);
    return vec2<u32>(low & HALF_MASK, high + (low >> HALF_BITS));
}

fn mass_value(mass: vec2<u32>) -> f32 {
    return f32(mass.y) * 8192.0 + f32(mass.x);
}

// A bijection that spreads every bit over all others: the last step of MurmurHash3.
fn mix(value: u32) -> u32 {
    var h = value;
    h = (h ^ (h >> 16u)) * 0x85ebca6bu;
    h = (h ^ (h >> 13u)) * 0xc2b2ae35u;
    return h ^ (h >> 16u);
}

// Seed and position name a stream of random numbers, one for each token.
fn random_stream(row: Row) -> vec2<u32> {
    let first = mix(mix(row.seed_low) + row.position);
    let second = mix(mix(row.seed_high ^ 0x9e3779b9u) ^ mix(row.seed_low + 0x7f4a7c15u)) + row.position * 0x9e3779b1u;
    return vec2<u32>(first, second);
}

fn random_bits(stream: vec2<u32>, token: u32) -> u32 {
    return mix(mix(token + stream.x) ^ stream.y);
}

// -ln(-ln(1 - v)), v uniform in (0, 1) and finest near 0, where the winners are.
fn gumbel(bits: u32) -> f32 {
    let v = min((f32(bits) + 0.5) * 2.3283064e-10, 0.99999994);
    // Where 1 - v would lose v's digits, the logarithm's series.
    let series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * 0.25)));
    return -log(select(-log(1.0 - v), series, v < 0.015625));
}
