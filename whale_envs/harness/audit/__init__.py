"""The defence against harnesses that cheat: a harness may communicate, never solve.

Four layers, in order of cost. None rests on another, and none is needed for the answers to stay out of a harness's
reach, which is the jail's part (`whale_envs.harness.jail`):

1. static (`static`, `rows`): what the source reaches for, and what it holds of the tasks;
2. provenance (`provenance`): in recorded episodes, whether the model wrote what was scored;
3. the null model (`whale_train.meta_harness.nulls`): what is scored with a policy that knows nothing;
4. canaries (`canary`): tasks whose answer no honest system could give.
"""

from whale_envs.harness.audit.canary import canaries, known_kind
from whale_envs.harness.audit.finding import Finding, Layer
from whale_envs.harness.audit.provenance import provenance
from whale_envs.harness.audit.static import static_findings
from whale_envs.harness.audit.vain import in_vain

__all__ = ["Finding", "Layer", "canaries", "in_vain", "known_kind", "provenance", "static_findings"]
