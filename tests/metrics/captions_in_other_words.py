"""Captions in other people's words, each with the differences that a reader takes from it.

They were written before the rules of :mod:`idc.metrics.difference_lists` were. A difference is (kind, words of the
described object, words of its old look, words of its new look); the words of a look are values, letters, numbers or
sides.
"""

Read = tuple[str, str, str, str]

OTHER_WORDS: tuple[tuple[str, tuple[Read, ...]], ...] = (
    (
        "The red cube at the back is gone, and the little green ball turned purple.",
        (("drop", "red cube", "", ""), ("color", "small green sphere", "", "purple")),
    ),
    ("A shiny yellow cylinder was added on the right.", (("add", "metal yellow cylinder", "", ""),)),
    ("Two red cubes were removed, so only one is left.", (("count", "red cube", "", ""),)),
    (
        "The letter on the blue block is now K instead of M.",
        (("text", "blue cube", "M", "K"),),
    ),
    (
        "the big purple sphere and the tiny gray cylinder have both disappeared",
        (("drop", "large purple sphere", "", ""), ("drop", "small gray cylinder", "", "")),
    ),
    (
        "In the second image, the metal cube has been swapped for a green rubber cylinder.",
        (("replace", "metal cube", "", "green rubber cylinder"),),
    ),
    (
        "The cyan sphere shrank. The brown cube was rotated slightly.",
        (("size", "cyan sphere", "", "small"), ("orientation", "brown cube", "", "")),
    ),
    ("Nothing is different between these two images.", ()),
    (
        "The yellow ball moved from the left side of the image to the right side.",
        (("move", "yellow sphere", "left", "right"),),
    ),
    (
        "There used to be three small cyan cubes, now there are five.",
        (("count", "small cyan cube", "3", "5"),),
    ),
    (
        "The matte green cylinder behind the red sphere became metallic and the blue cube now reads F.",
        (("material", "rubber green cylinder", "", "metal"), ("text", "blue cube", "", "F")),
    ),
    (
        "Someone took away the brown block and put a large gray sphere in the foreground.",
        (("drop", "brown cube", "", ""), ("add", "large gray sphere", "", "")),
    ),
    ("The cylinder is bigger than before.", (("size", "cylinder", "", "large"),)),
    (
        "It looks like the red sphere has changed its color to gray, while the purple cube was shifted forward.",
        (("color", "red sphere", "", "gray"), ("move", "purple cube", "", "front")),
    ),
    (
        "A blue cylinder stands where the green cube was.",
        (("replace", "green cube", "", "blue cylinder"),),
    ),
    ("The images look exactly the same to me.", ()),
    (
        "the cube that was rubber is now metal",
        (("material", "rubber cube", "", "metal"),),
    ),
    (
        "There is one more small yellow sphere, and a brown cylinder is missing from the left side.",
        (("count", "small yellow sphere", "", ""), ("drop", "brown cylinder", "", "")),
    ),
    (
        "The large cube left of the cyan ball faces a different direction; its color is unchanged.",
        (("orientation", "large cube", "", ""),),
    ),
    (
        "The number of purple balls went down from four to two and the gray block went from large to small",
        (("count", "purple sphere", "4", "2"), ("size", "gray cube", "large", "small")),
    ),
    (
        "the red cube turned blue and moved to the left",
        (("color", "red cube", "", "blue"), ("move", "red cube", "", "left")),
    ),
    (
        "The small metal sphere has been painted green. Also, a cube has vanished.",
        (("color", "small metal sphere", "", "green"), ("drop", "cube", "", "")),
    ),
    (
        "the A on the green cylinder changed into a B",
        (("text", "green cylinder", "A", "B"),),
    ),
    (
        "the the small small red red cube cube has has turned turned blue blue blue",
        (("color", "small red cube", "", "blue"),),
    ),
)

LATER_WORDS: tuple[tuple[str, tuple[Read, ...]], ...] = (
    (
        "In the second image, the red cube has been removed and a new blue sphere has been placed in front of the "
        "green cylinder.",
        (("drop", "red cube", "", ""), ("add", "blue sphere", "", "")),
    ),
    (
        "The main difference is that the color of the large cylinder changed from purple to yellow.",
        (("color", "large cylinder", "purple", "yellow"),),
    ),
    ("There is an additional small gray cube in the right image.", (("add", "small gray cube", "", ""),)),
    (
        "The small metallic sphere that was on the left side is no longer visible.",
        (("drop", "small metal sphere", "", ""),),
    ),
    ("Compared to the first image, the yellow cube appears to be larger.", (("size", "yellow cube", "", "large"),)),
    (
        "The green rubber cylinder has been moved further back, and the cyan block is missing.",
        (("move", "green rubber cylinder", "", "behind"), ("drop", "cyan cube", "", "")),
    ),
    ("Image 2 shows a brown cube instead of a brown sphere.", (("replace", "brown sphere", "", "brown cube"),)),
    ("The text on the big red cube was changed from H to T.", (("text", "large red cube", "H", "T"),)),
    (
        "The purple cube has been rotated by about 45 degrees while everything else remains the same.",
        (("orientation", "purple cube", "", ""),),
    ),
    (
        "There are fewer small blue balls: three before, only one after.",
        (("count", "small blue sphere", "", "fewer"),),
    ),
    (
        "The gray cylinder's material changed from metal to rubber.",
        (("material", "gray cylinder", "metal", "rubber"),),
    ),
    (
        "A tiny cyan cylinder, which was behind the red ball, has disappeared.",
        (("drop", "small cyan cylinder", "", ""),),
    ),
    ("The two images are nearly identical. The red cube is missing in the second.", (("drop", "red cube", "", ""),)),
    (
        "There is nothing different except that the red cube is bigger.",
        (("size", "red cube", "", "large"),),
    ),
    ("The images are identical except for the missing cube.", (("drop", "cube", "", ""),)),
    ("Nothing has changed apart from the size of the red ball.", (("size", "red sphere", "", ""),)),
    ("The cube isn't red anymore.", (("color", "cube", "red", ""),)),
    ("Someone has placed a shiny blue ball next to the green cube.", (("add", "metal blue sphere", "", ""),)),
    (
        "The only thing that changed is the color of the ball: it went from red to green.",
        (("color", "sphere", "red", "green"),),
    ),
    (
        "A large red sphere is visible in the first image but not in the second.",
        (("drop", "large red sphere", "", ""),),
    ),
    ("The blue cube is present only in the second image.", (("add", "blue cube", "", ""),)),
    ("Nothing changed. No objects were added or removed.", ()),
    ("There is no difference between the two images; the objects have not moved.", ()),
    ("No differences can be seen, although the camera moved slightly.", ()),
)
"""In the manner of language models; written after the rules."""
